//! Reloads the files of the serving certificate and of the client CA when they change.
//!
//! Promises: a changed file is in force shortly after it was written, and within a minute where it
//! cannot be watched; an invalid file leaves the previous one in force.

use crate::auth::ClientAuthorities;
use crate::tls::{AskClient, ServerTls, ServingCertificate};
use futures::future::select_all;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use sys::watch::FolderWatch;
use telemetry::metrics::{Registry, WorkQueue};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const RELOAD: Duration = Duration::from_secs(60);

/// The files to reload.
#[derive(Debug)]
pub(crate) struct CertificateFiles {
    /// The client CA, if configured.
    pub(crate) authorities: Option<Arc<ClientAuthorities>>,
    /// The TLS configuration whose advertised CA names follow the client CA, if they are
    /// advertised.
    pub(crate) named: Option<Arc<ServerTls>>,
    /// The serving certificate in use.
    pub(crate) certificate: Arc<ServingCertificate>,
    /// Its certificate and key file, if it comes from files.
    pub(crate) pair: Option<(PathBuf, PathBuf)>,
    /// Metrics of the reloads.
    pub(crate) queues: Queues,
}

const BUNDLE: &str = "DynamicCABundle-client-ca-bundle";

/// Metrics of reloads under the names of upstream's work queues.
#[derive(Debug)]
pub(crate) struct Queues {
    bundle: Vec<WorkQueue>,
    pair: Option<WorkQueue>,
}

impl Queues {
    /// Registers the metrics of the files that are followed.
    pub(crate) fn new(registry: &Registry, bundle: AskClient, pair: bool) -> Self {
        let queue = |name: &&str| WorkQueue::new(registry, name);
        let names: &[&str] = match bundle {
            AskClient::Never => &[],
            AskClient::AtStart => &[BUNDLE],
            AskClient::Followed => &[BUNDLE, "DynamicServingCertificateController"],
        };
        Self {
            bundle: names.iter().map(queue).collect(),
            pair: pair.then(|| queue(&"DynamicCABundle-kubelet-server-cert-files")),
        }
    }
}

fn counted<T>(queues: &[WorkQueue], work: impl FnOnce() -> T) -> T {
    queues.iter().for_each(WorkQueue::added);
    let began = Instant::now();
    queues.iter().for_each(|queue| queue.taken(began.elapsed()));
    let done = work();
    queues.iter().for_each(|queue| queue.done(began.elapsed()));
    done
}

impl CertificateFiles {
    /// Reloads the files whenever they change, until cancelled.
    pub(crate) async fn follow(self, cancel: CancellationToken) {
        let mut watches = self.watches();
        // The files may have changed before the watches were set up.
        self.reload();
        loop {
            tokio::select! {
                // Cancel-safe: nothing is held.
                () = cancel.cancelled() => return,
                // Cancel-safe: a sleep. A directory that was missing may exist again.
                () = tokio::time::sleep(RELOAD) => watches = self.watches(),
                // Cancel-safe: inotify keeps unread events.
                alive = any_changed(&mut watches) => {
                    if !alive {
                        watches = self.watches();
                    }
                }
            }
            self.reload();
        }
    }

    /// One watch for each directory that holds one of the files.
    fn watches(&self) -> Vec<FolderWatch> {
        let pair = self.pair.iter().flat_map(|(crt, key)| [crt.as_path(), key.as_path()]);
        let bundle = self.authorities.iter().map(|authorities| authorities.file());
        let folders: BTreeSet<&Path> = pair.chain(bundle).filter_map(Path::parent).collect();
        folders.into_iter().filter_map(|folder| FolderWatch::new(folder).ok()).collect()
    }

    fn reload(&self) {
        if let Some(authorities) = &self.authorities
            && let Err(error) = counted(&self.queues.bundle, || {
                authorities.reload()?;
                let named = self.named.as_ref().map_or(Ok(()), |tls| tls.name(authorities.names()));
                named.map_err(|error| error.to_string())
            })
        {
            tracing::error!(
                err = error,
                "client CA bundle not reloaded, the old one stays in force"
            );
        }
        if let Some((crt, key)) = &self.pair
            && let Err(error) =
                counted(self.queues.pair.as_slice(), || self.certificate.read(crt, key))
        {
            tracing::error!(err = %error, "serving certificate not reloaded, the old one stays in force");
        }
    }
}

/// Waits for the first change; `false` when that watch has ended.
async fn any_changed(watches: &mut [FolderWatch]) -> bool {
    if watches.is_empty() {
        return std::future::pending().await;
    }
    select_all(watches.iter_mut().map(|watch| Box::pin(watch.changed()))).await.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::self_signed;

    #[tokio::test]
    async fn a_new_pair_is_in_force_at_once_and_half_of_one_is_not() {
        let base = std::env::temp_dir().join(format!("rubelet-follow-{}", std::process::id()));
        let certificate = Arc::new(ServingCertificate::default());
        let pair = self_signed(&certificate, &base.join("a"), "node1", 1_700_000_000).unwrap();
        let first = certificate.leaf().unwrap();
        let files = CertificateFiles {
            authorities: None,
            named: None,
            certificate: Arc::clone(&certificate),
            pair: Some(pair.clone()),
            queues: Queues::new(&Registry::new(), AskClient::Never, true),
        };
        let cancel = CancellationToken::new();
        let watching = files.watches();
        assert_eq!(watching.len(), 1);
        let other = ServingCertificate::default();
        let new = self_signed(&other, &base.join("b"), "node1", 1_700_000_000).unwrap();

        let half = sys::fs::read(&new.0).unwrap();
        sys::fs::write(&pair.0, half).unwrap();
        files.reload();
        assert_eq!(certificate.leaf().unwrap(), first, "its key is not there yet");

        let key = sys::fs::read(&new.1).unwrap();
        let mut follow = std::pin::pin!(files.follow(cancel));
        let done = async {
            sys::fs::write(&pair.1, key).unwrap();
            while certificate.leaf().unwrap() == first {
                tokio::task::yield_now().await;
            }
        };
        // Well below the minute after which the file would be read in any case.
        let within = tokio::time::timeout(Duration::from_secs(30), async {
            tokio::select! {
                () = &mut follow => {}
                () = done => {}
            }
        });
        within.await.unwrap();
        assert_eq!(certificate.leaf(), other.leaf());
        sys::removal::remove_tree(Path::new("/proc"), &base, sys::removal::Contents::Everything)
            .unwrap();
    }
}
