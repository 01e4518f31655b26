//! Where the `httpGet` action of a probe or hook leads, put together as the Go kubelet does it.

use super::url::Url;
use api::core::v1::{Container, HTTPGetAction};
use api::machinery::util::intstr::IntOrString;

/// The URL of an `httpGet` action; the pod's IP stands in for a missing host.
pub fn target(action: &HTTPGetAction, container: &Container, pod_ip: &str) -> Result<Url, String> {
    let scheme = action.scheme.as_deref().unwrap_or("HTTP").to_lowercase();
    let host = action.host.as_deref().filter(|h| !h.is_empty()).unwrap_or(pod_ip);
    let port = resolve_port(&action.port, container)?;
    let path = action.path.as_deref().unwrap_or("/");
    // A path may be a whole URL; its path and query count.
    let mut url = Url::parse(path).unwrap_or_else(|_| Url::of_path(path));
    url.scheme = scheme;
    url.host = if host.contains([':', '%']) {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    };
    Url::parse(&url.to_string())
}

/// A port given as number, numeric text or name of a port of this container.
pub fn resolve_port(port: &IntOrString, container: &Container) -> Result<u16, String> {
    let number = match port {
        IntOrString::Int(number) => i64::from(*number),
        IntOrString::String(name) => {
            let named = container.ports.iter().flatten().find(|p| p.name.as_ref() == Some(name));
            match named {
                Some(port) => i64::from(port.container_port),
                None => name
                    .parse()
                    .map_err(|_| format!("strconv.Atoi: parsing {name:?}: invalid syntax"))?,
            }
        }
    };
    match u16::try_from(number) {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("invalid port number: {number}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::core::v1::ContainerPort;

    fn action(path: &str, port: IntOrString, host: &str) -> HTTPGetAction {
        let (path, host) = (Some(path.to_owned()), Some(host.to_owned()));
        HTTPGetAction { path, port, host, ..Default::default() }
    }

    #[test]
    fn builds_urls_as_the_go_kubelet_does() {
        let container = Container {
            ports: Some(vec![ContainerPort {
                name: Some("web".into()),
                container_port: 8080,
                ..Default::default()
            }]),
            ..Default::default()
        };
        let url = |path: &str, port: IntOrString, ip: &str| {
            target(&action(path, port, ""), &container, ip).map(|url| url.to_string())
        };
        let number = IntOrString::Int;
        assert_eq!(
            url("healthz?a=b#c", number(80), "10.0.0.5").unwrap(),
            "http://10.0.0.5:80/healthz?a=b#c"
        );
        assert_eq!(
            url("/a b", IntOrString::String("web".into()), "fd00::1").unwrap(),
            "http://[fd00::1]:8080/a%20b"
        );
        assert_eq!(url("/", IntOrString::String("81".into()), "h").unwrap(), "http://h:81/");
        assert_eq!(
            url("/", IntOrString::String("x".into()), "h").unwrap_err(),
            "strconv.Atoi: parsing \"x\": invalid syntax"
        );
        assert_eq!(url("https://else:9/x?y", number(80), "h").unwrap(), "http://h:80/x?y");
        assert_eq!(url("/50%?x", number(80), "h").unwrap(), "http://h:80/50%25%3Fx");
        assert_eq!(url("mailto:x", number(80), "h").unwrap(), "http:x");
    }

    #[test]
    fn a_host_that_cannot_be_is_told_of_in_gos_words() {
        let told = |host: &str| {
            let action = action("/", IntOrString::Int(80), host);
            target(&action, &Container::default(), "10.0.0.5").unwrap_err()
        };
        assert_eq!(told("a b"), r#"parse "http://a%20b:80/": invalid URL escape "%20""#);
        assert_eq!(told("[::1]"), r#"parse "http://[[::1]]:80/": invalid IP-literal"#);
    }
}
