//! Ways to the fake: in-memory streams and a socket, both of which a restart breaks.

use std::io;
use std::path::Path;

use cri::Connector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use ports::OnExit;
use proto::cri_v1::image_service_server::ImageServiceServer;
use proto::cri_v1::runtime_service_server::RuntimeServiceServer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixListener;
use tower::{Service, service_fn};

use super::{FakeCri, lock};

const DUPLEX_BYTES: usize = 64 * 1024;
const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;

impl FakeCri {
    /// Reaches the fake through memory.
    pub fn connector(&self) -> Connector {
        let fake = self.clone();
        Connector::new("dial memory fake", move || {
            let fake = fake.clone();
            async move {
                if *lock(&fake.inner.refusing) {
                    return Err(io::Error::from(io::ErrorKind::ConnectionRefused));
                }
                let (near, far) = tokio::io::duplex(DUPLEX_BYTES);
                fake.serve_connection(far);
                Ok(near)
            }
        })
    }

    /// Serves on a socket until the test's runtime ends. The file must not be there yet.
    pub fn serve_unix(&self, path: &Path) -> io::Result<()> {
        let listener = UnixListener::bind(path)?;
        let fake = self.clone();
        self.inner.tasks.spawn("fake cri listener", OnExit::Fine, async move {
            while let Ok((stream, _)) = listener.accept().await {
                if !*lock(&fake.inner.refusing) {
                    fake.serve_connection(stream);
                }
            }
        });
        Ok(())
    }

    fn serve_connection(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let run = lock(&self.inner.run).clone();
        let runtime =
            RuntimeServiceServer::new(self.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let image = ImageServiceServer::new(self.clone());
        let fake = self.clone();
        let route = service_fn(move |request: http::Request<hyper::body::Incoming>| {
            let authority = request.uri().authority().map(ToString::to_string);
            *lock(&fake.inner.authority) = authority;
            let (mut runtime, mut image) = (runtime.clone(), image.clone());
            async move {
                if request.uri().path().starts_with("/runtime.v1.ImageService/") {
                    image.call(request).await
                } else {
                    runtime.call(request).await
                }
            }
        });
        self.inner.tasks.spawn("fake cri connection", OnExit::Fine, async move {
            let builder = auto::Builder::new(TokioExecutor::new()).http2_only();
            let connection =
                builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(route));
            tokio::select! {
                // Dropping the connection is the point.
                () = run.cancelled() => {}
                // Ends with the peer; how does not matter.
                _ = connection => {}
            }
        });
    }
}
