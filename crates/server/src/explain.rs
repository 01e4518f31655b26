//! The explain socket: why pods wait and what happened to them, for root on this machine.
//!
//! Owns: `rubelet/explain.sock` below the root directory, in a directory that only root can enter.
//! Promises: a client that connects as root, or as the agent's own user, is sent one JSON document
//! and end of file; nothing is read from the client; a slow client does not delay others and is
//! dropped. Deliberately absent: the content of the document (`ports::Explains`), any way to change
//! something.

use ports::{Explains, OnExit, Tasks};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

/// Clients answered concurrently; others wait.
const AT_ONCE: usize = 4;
/// The time limit for one response.
const LIMIT: Duration = Duration::from_secs(10);
/// The pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// The path of the socket in the agent's own directory.
pub fn explain_socket(own: &Path) -> PathBuf {
    own.join("explain.sock")
}

/// Serves the document until the tasks end. If the socket cannot be opened, only this service is
/// missing.
pub fn serve_explain(story: Arc<dyn Explains>, own: &Path, tasks: &Tasks) {
    let path = explain_socket(own);
    let listener = match listen(&path) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::warn!(err = %error, path = %path.display(), "Failed to open the explain socket");
            return;
        }
    };
    let all = tasks.clone();
    tasks.spawn("explain", OnExit::Fine, async move {
        // Cancellation loses nothing.
        all.token().run_until_cancelled(accept(listener, story, &all)).await;
    });
}

fn listen(path: &Path) -> io::Result<UnixListener> {
    sys::fs::remove_file(path).map_err(|error| error.source)?;
    UnixListener::bind(path)
}

async fn accept(listener: UnixListener, story: Arc<dyn Explains>, tasks: &Tasks) {
    let places = Arc::new(Semaphore::new(AT_ONCE));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(err = %error, "Failed to accept a connection on the explain socket");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (story, token) = (Arc::clone(&story), tasks.token());
        tasks.spawn("explain-answer", OnExit::Alone, async move {
            let answering = tokio::time::timeout(LIMIT, answer(stream, &*story));
            // On shutdown the client sees a truncated response.
            token.run_until_cancelled(answering).await;
            drop(place);
        });
    }
}

async fn answer(mut stream: UnixStream, story: &dyn Explains) {
    let trusted = stream.peer_cred().is_ok_and(|peer| may_ask(peer.uid(), sys::process::user()));
    if !trusted {
        return;
    }
    let document = serde_json::to_vec(&story.explain().await).unwrap_or_default();
    // The client may have disconnected.
    let _ = stream.write_all(&document).await;
    let _ = stream.shutdown().await;
}

fn may_ask(peer: u32, own: u32) -> bool {
    peer == 0 || peer == own
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use ports::{Explained, ExplainedPod};
    use tokio::io::AsyncReadExt;

    #[derive(Debug)]
    struct Story;

    #[async_trait]
    impl Explains for Story {
        async fn explain(&self) -> Explained {
            let pod = ExplainedPod { name: "n/p".into(), ..ExplainedPod::default() };
            Explained { pods: vec![pod], hung: vec!["stat".into()], ..Explained::default() }
        }
    }

    #[tokio::test]
    async fn whoever_connects_is_told_the_story_even_beside_idle_askers() {
        let dir = std::env::temp_dir().join(format!("rubelet-explain-{}", std::process::id()));
        sys::fs::create_dir_all(&dir, 0o700).unwrap();
        let tasks = Tasks::new();
        // A socket left by an earlier process is replaced.
        sys::fs::write(explain_socket(&dir), "").unwrap();
        serve_explain(Arc::new(Story), &dir, &tasks);
        let path = explain_socket(&dir);
        let mut idle = Vec::new();
        for _ in 0..AT_ONCE {
            idle.push(UnixStream::connect(&path).await.unwrap());
        }
        let mut text = String::new();
        let mut asker = UnixStream::connect(&path).await.unwrap();
        let read = tokio::time::timeout(LIMIT * 2, asker.read_to_string(&mut text));
        read.await.unwrap().unwrap();
        let received: Explained = serde_json::from_str(&text).unwrap();
        assert_eq!((received.pods[0].name.as_str(), received.hung.len()), ("n/p", 1));
        tasks.shutdown().await;
        let everything = sys::removal::Contents::Everything;
        sys::removal::remove_tree(Path::new("/proc"), &dir, everything).unwrap();
    }

    #[test]
    fn only_root_and_the_agent_itself_may_ask() {
        assert!(may_ask(0, 1000) && may_ask(1000, 1000) && !may_ask(1001, 1000));
    }
}
