//! A small signer of `PodCertificateRequest`s: it issues, denies or fails by the name it is asked under.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use anyhow::Context;
use base64::Engine;
use serde_json::{Value, json};

use super::ControlPlane;
use super::process::output_of;

/// Requests to this name get a certificate.
const ISSUES: &str = "signer.test/issues";
/// … are refused.
const DENIES: &str = "signer.test/denies";
/// … cannot be signed.
const FAILS: &str = "signer.test/fails";

/// The signer with an authority of its own.
#[derive(Debug)]
pub struct PodSigner {
    control: Arc<ControlPlane>,
    dir: PathBuf,
}

impl PodSigner {
    /// Makes the authority.
    pub fn new(control: &Arc<ControlPlane>) -> anyhow::Result<Self> {
        let signer = Self { control: Arc::clone(control), dir: control.folder("signer")? };
        let mut make = signer.openssl();
        make.args(["req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=signer"]);
        make.args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]);
        make.args(["-keyout", "ca.key", "-out", "ca.crt"]);
        output_of(make)?;
        Ok(signer)
    }

    /// The authority's certificate.
    #[must_use]
    pub fn authority(&self) -> PathBuf {
        self.dir.join("ca.crt")
    }

    fn openssl(&self) -> Command {
        let mut command = Command::new("openssl");
        command.current_dir(&self.dir);
        command
    }

    /// Answers every request that has no answer yet; gives all requests.
    pub fn pass(&self) -> anyhow::Result<Vec<Value>> {
        let list = self.control.get(["podcertificaterequests", "-A"])?;
        let requests = list["items"].as_array().cloned().unwrap_or_default();
        for request in &requests {
            if request["status"]["conditions"].as_array().is_none_or(Vec::is_empty) {
                self.answer(request)?;
            }
        }
        Ok(requests)
    }

    fn answer(&self, request: &Value) -> anyhow::Result<()> {
        let condition = |kind: &str, reason: &str, message: &str| {
            json!({"type": kind, "status": "True", "reason": reason, "message": message,
                "lastTransitionTime": jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()})
        };
        let status = match request["spec"]["signerName"].as_str() {
            Some(ISSUES) => {
                let (chain, from, to) = self.sign(request)?;
                let refresh = to - jiff::SignedDuration::from_hours(6);
                let time = |at: jiff::Timestamp| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
                json!({"conditions": [condition("Issued", "Signed", "here it is")],
                    "certificateChain": chain, "notBefore": time(from), "notAfter": time(to),
                    "beginRefreshAt": time(refresh)})
            }
            Some(DENIES) => {
                json!({"conditions": [condition("Denied", "NotYou", "not for \"you\"")]})
            }
            Some(FAILS) => json!({"conditions": [condition("Failed", "NoInk", "the pen is dry")]}),
            _ => return Ok(()),
        };
        let text = |key: &str| request["metadata"][key].as_str().unwrap_or_default().to_owned();
        let (name, namespace) = (text("name"), text("namespace"));
        let patch = json!({"status": status}).to_string();
        let object = ["patch", "podcertificaterequest", &name, "-n", &namespace];
        let how = ["--subresource=status", "--type=merge", "-p", &patch];
        self.control.kubectl(object.into_iter().chain(how)).map(drop)
    }

    /// A chain for the key of the request, and the ends of its life.
    fn sign(&self, request: &Value) -> anyhow::Result<(String, jiff::Timestamp, jiff::Timestamp)> {
        let name = request["metadata"]["name"].as_str().unwrap_or_default();
        let stub = request["spec"]["stubPKCS10Request"].as_str().unwrap_or_default();
        let stub = base64::prelude::BASE64_STANDARD.decode(stub).context("stubPKCS10Request")?;
        let file = self.dir.join(format!("{name}.der"));
        std::fs::write(&file, stub)?;
        let serial = jiff::Timestamp::now().as_nanosecond().to_string();
        let mut sign = self.openssl();
        sign.args(["x509", "-req", "-inform", "DER", "-days", "1", "-set_serial", &serial]);
        sign.args(["-CA", "ca.crt", "-CAkey", "ca.key", "-in"]).arg(&file);
        let certificate = output_of(sign)?;
        let crt = self.dir.join(format!("{name}.crt"));
        std::fs::write(&crt, &certificate)?;
        let mut read = self.openssl();
        read.args(["x509", "-noout", "-startdate", "-enddate", "-dateopt", "iso_8601", "-in"]);
        let ends = output_of({
            read.arg(&crt);
            read
        })?;
        let end = |which: &str| {
            let line = ends.lines().find_map(|line| line.strip_prefix(which));
            let time = line.context("openssl names no time")?.replace(' ', "T");
            time.parse::<jiff::Timestamp>().context("a time of openssl")
        };
        // What surrounds the blocks is nobody's business.
        let chain = format!("{certificate}{}", std::fs::read_to_string(self.authority())?);
        Ok((chain, end("notBefore=")?, end("notAfter=")?))
    }
}
