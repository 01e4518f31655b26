//! First stage: the machine is read, and traces have a name to be sent under.

use super::StartContext;
use crate::host::{Host, HostError};
use crate::traces;

pub(super) fn read(cx: &StartContext<'_>) -> Result<Host, HostError> {
    let host = Host::read(cx.config, &cx.roots)?;
    traces::start(cx.config, &host.hostname, cx.tasks);
    Ok(host)
}
