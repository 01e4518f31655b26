//! Watches the certificate files that a kubeconfig names, so that a rotated file is used without a
//! restart.

use super::Connection;
use super::kubeconfig::{Kubeconfig, PemPair};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

const PERIOD: Duration = Duration::from_secs(60);

pub(super) async fn run(connection: Connection, kubeconfig: Kubeconfig, cancel: CancellationToken) {
    let mut seen = read(&kubeconfig).await;
    loop {
        tokio::select! {
            // Cancel-safe: a token has no state to lose.
            () = cancel.cancelled() => return,
            // Cancel-safe: a fresh sleep each round.
            () = tokio::time::sleep(PERIOD) => {}
        }
        let now = read(&kubeconfig).await;
        if now == seen || now.is_none() {
            continue;
        }
        if let Some((_, Some(pair))) = &now
            && let Err(err) = connection.identity().install_pem(&pair.certificate, &pair.key)
        {
            // A partly written pair: try again in the next round.
            tracing::warn!(err = %err, "client certificate files changed but cannot be used");
            continue;
        }
        tracing::info!("certificate files of the kubeconfig changed, redialling");
        connection.redial_all();
        seen = now;
    }
}

type Files = (Option<Vec<u8>>, Option<PemPair>);

async fn read(kubeconfig: &Kubeconfig) -> Option<Files> {
    let kubeconfig = kubeconfig.clone();
    sys::blocking::run(move || {
        Some((kubeconfig.authority_pem().ok()?, kubeconfig.client_pair().ok()?))
    })
    .await
    .ok()
    .flatten()
}
