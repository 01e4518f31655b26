//! Mounts and devices.

use super::*;
use api::core::v1::VolumeDevice;

fn mount(name: &str, path: &str) -> VolumeMount {
    VolumeMount { name: name.into(), mount_path: path.into(), ..VolumeMount::default() }
}

fn view(path: &str) -> VolumeView {
    VolumeView { host_path: path.into(), ..VolumeView::default() }
}

struct Case {
    container: Container,
    volumes: BTreeMap<String, VolumeView>,
    images: BTreeMap<String, ImageSpec>,
    envs: Vec<EnvVariable>,
    rro: bool,
}

impl Case {
    fn new(mounts: Vec<VolumeMount>) -> Self {
        Self {
            container: Container {
                name: "c".into(),
                volume_mounts: Some(mounts),
                ..Container::default()
            },
            volumes: [("v".into(), view("/host/v"))].into(),
            images: BTreeMap::new(),
            envs: vec![EnvVariable { name: "N".into(), value: b"sub".to_vec() }],
            rro: true,
        }
    }

    fn input(&self) -> MountInput<'_> {
        MountInput {
            container: &self.container,
            volumes: &self.volumes,
            image_volumes: &self.images,
            envs: &self.envs,
            recursive_read_only: self.rro,
        }
    }

    fn mounts(&self) -> Result<Vec<Mount>, String> {
        let bound = sub_paths(&self.input())
            .map_err(|e| e.to_string())?
            .into_iter()
            .map(|s| (s.index, format!("/bound/{}", s.path)))
            .collect();
        let all = volume_mounts(&self.input(), &bound).map_err(|e| e.to_string())?;
        Ok(all.into_iter().map(|m| m.finish(true, &[])).collect())
    }
}

#[test]
fn sub_paths_are_expanded_and_bound() {
    let expr = VolumeMount { sub_path_expr: Some("a/$(N)".into()), ..mount("v", "data") };
    let got = Case::new(vec![mount("v", "/plain"), expr]).mounts().unwrap();
    assert_eq!(got[0].host_path, "/host/v");
    assert_eq!(
        (got[1].host_path.as_str(), got[1].container_path.as_str()),
        ("/bound/a/sub", "/data")
    );
    assert!(got[1].image_sub_path.is_empty());
}

#[test]
fn bad_mounts_have_the_go_kubelets_text() {
    let with = |f: fn(&mut VolumeMount)| {
        let mut m = mount("v", "/data");
        f(&mut m);
        Case::new(vec![m]).mounts().unwrap_err()
    };
    assert_eq!(
        with(|m| m.name = "none".into()),
        "cannot find volume \"none\" to mount into container \"c\""
    );
    assert_eq!(with(|m| m.sub_path_expr = Some("$(B)$(A)".into())), "missing value for A, B");
    assert_eq!(
        with(|m| m.sub_path = Some("/x".into())),
        "error SubPath `/x` must not be an absolute path"
    );
    assert_eq!(
        with(|m| m.sub_path = Some("a/../b".into())),
        "unable to provision SubPath `a/../b`: must not contain '..'"
    );
    assert_eq!(
        with(|m| m.mount_propagation = Some("odd".into())),
        "invalid MountPropagation mode: \"odd\""
    );
    assert_eq!(
        with(|m| m.recursive_read_only = Some("Enabled".into())),
        "failed to resolve recursive read-only mode: volume \"v\" requested recursive read-only \
         mode, but it is not read-only"
    );
}

#[test]
fn recursive_read_only_needs_the_runtime() {
    let of = |mode: &str, rro: bool| {
        let mut m = mount("v", "/data");
        m.read_only = Some(true);
        m.recursive_read_only = Some(mode.into());
        let mut case = Case::new(vec![m]);
        case.rro = rro;
        case.mounts().map(|all| all[0].recursive_read_only)
    };
    assert_eq!(of("Enabled", true), Ok(true));
    assert!(of("Enabled", false).unwrap_err().ends_with("not supported by the runtime"));
    assert_eq!(of("IfPossible", false), Ok(false));
    assert_eq!(of("Disabled", true), Ok(false));
}

#[test]
fn image_volumes_have_no_host_path() {
    let sub = |name: &str| VolumeMount { sub_path: Some("s".into()), ..mount(name, "/data") };
    let mut case = Case::new(vec![sub("img"), sub("v")]);
    case.images.insert("img".into(), ImageSpec { image: "ref".into(), ..ImageSpec::default() });
    let got = case.mounts().unwrap();
    assert_eq!(got[0].image.as_ref().unwrap().image, "ref");
    assert!(got[0].host_path.is_empty() && got[0].readonly);
    assert_eq!(got[0].image_sub_path, "s");
    assert_eq!((got[1].host_path.as_str(), got[1].image_sub_path.as_str()), ("/bound/s", "s"));
}

#[test]
fn block_volumes_become_devices() {
    let device =
        |name: &str, path: &str| VolumeDevice { name: name.into(), device_path: path.into() };
    let block = |path: &str, read_only| VolumeView { block: true, read_only, ..view(path) };
    let volumes = [
        ("a".into(), block("/dev/a", false)),
        ("b".into(), block("/dev/b", true)),
        ("gone".into(), block("", false)),
        ("fs".into(), view("/host")),
    ]
    .into();
    let of = |devices: Vec<VolumeDevice>| {
        let container =
            Container { name: "c".into(), volume_devices: Some(devices), ..Container::default() };
        block_devices(&container, &volumes).map_err(|e| e.to_string())
    };
    let got =
        of(vec![device("a", "/dev/x"), device("b", "/dev/y"), device("gone", "/dev/z")]).unwrap();
    let seen: Vec<_> = got.iter().map(|d| (d.host_path.as_str(), d.permissions.as_str())).collect();
    assert_eq!(seen, [("/dev/a", "mrw"), ("/dev/b", "r")]);
    assert_eq!(
        of(vec![device("fs", "/dev/x")]),
        Err("cannot find volume \"fs\" to pass into container \"c\"".into())
    );
    assert_eq!(
        of(vec![device("a", "x")]),
        Err("error DevicePath `x` must be an absolute path".into())
    );
}
