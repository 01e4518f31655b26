//! Loop devices: a file (or a bound device node) as a block device.
//!
//! The Go kubelet holds a raw block volume open with a loop device on its bind mount; so do we, by
//! ioctl instead of `losetup`.

use crate::fs::{FsError, named};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

const LOOP_SET_FD: libc::Ioctl = 0x4C00;
const LOOP_CLR_FD: libc::Ioctl = 0x4C01;
const LOOP_SET_CAPACITY: libc::Ioctl = 0x4C07;
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
/// How often another process may take the free device first.
const TRIES: usize = 32;

/// Calls an ioctl whose argument is an integer.
#[expect(unsafe_code, reason = "no safe wrapper exists for loop ioctls")]
fn control(file: &File, request: libc::Ioctl, argument: libc::c_long) -> io::Result<libc::c_int> {
    // SAFETY: the descriptor is open for the call, and every request used here takes its argument
    // by value (a descriptor or nothing), so no memory is read or written through it.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), request, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn open(path: &Path, write: bool) -> Result<File, FsError> {
    named("open", path, OpenOptions::new().read(true).write(write).open(path))
}

/// Attaches `file` to a loop device below `dev` (normally `/dev`); returns the device.
pub fn attach(dev: &Path, file: &Path, read_only: bool) -> Result<PathBuf, FsError> {
    let backing = open(file, !read_only)?;
    let control_path = dev.join("loop-control");
    let loop_control = open(&control_path, true)?;
    for _ in 0..TRIES {
        let number = named(
            "find a free loop device",
            &control_path,
            control(&loop_control, LOOP_CTL_GET_FREE, 0),
        )?;
        let device = dev.join(format!("loop{number}"));
        let handle = open(&device, !read_only)?;
        crate::fail_point::before("attach", file)?;
        match control(&handle, LOOP_SET_FD, backing.as_raw_fd().into()) {
            Ok(_) => return Ok(device),
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {}
            Err(e) => return named("attach", &device, Err(e)),
        }
    }
    named("attach", file, Err(io::Error::from_raw_os_error(libc::EBUSY)))
}

/// The loop device on `file`, if there is one.
pub fn find(sys: &Path, dev: &Path, file: &Path) -> Result<Option<PathBuf>, FsError> {
    for name in crate::fs::list_dir(sys.join("block"))? {
        if !name.starts_with("loop") {
            continue;
        }
        let backing = sys.join("block").join(&name).join("loop/backing_file");
        let shown = crate::fs::read_to_string(backing).unwrap_or_default();
        if Path::new(shown.trim_end_matches('\n')) == file {
            return Ok(Some(dev.join(name)));
        }
    }
    Ok(None)
}

/// Releases the device; one that is already free is fine.
pub fn detach(device: &Path) -> Result<(), FsError> {
    let handle = open(device, false)?;
    crate::fail_point::before("detach", device)?;
    match control(&handle, LOOP_CLR_FD, 0) {
        Ok(_) => Ok(()),
        Err(e) if e.raw_os_error() == Some(libc::ENXIO) => Ok(()),
        Err(e) => named("detach", device, Err(e)),
    }
}

/// Updates the size of the device after its file has grown.
pub fn refresh_size(device: &Path) -> Result<(), FsError> {
    let handle = open(device, false)?;
    named("resize", device, control(&handle, LOOP_SET_CAPACITY, 0).map(drop))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, SeekFrom, Write};

    #[test]
    fn a_file_is_seen_as_a_device_and_grows_with_it() {
        let file = std::env::temp_dir().join(format!("rubelet-loop-{}", std::process::id()));
        let mut image = File::create(&file).unwrap();
        image.write_all(b"hello").unwrap();
        image.set_len(1 << 20).unwrap();
        let (sys, dev) = (Path::new("/sys"), Path::new("/dev"));
        assert_eq!(find(sys, dev, &file).unwrap(), None);
        let device = attach(dev, &file, false).unwrap();
        assert_eq!(find(sys, dev, &file).unwrap(), Some(device.clone()));
        let mut handle = File::open(&device).unwrap();
        let mut start = [0; 5];
        handle.read_exact(&mut start).unwrap();
        assert_eq!(&start, b"hello");
        image.set_len(2 << 20).unwrap();
        refresh_size(&device).unwrap();
        assert_eq!(handle.seek(SeekFrom::End(0)).unwrap(), 2 << 20);
        drop(handle);
        detach(&device).unwrap();
        assert_eq!(find(sys, dev, &file).unwrap(), None);
        std::fs::remove_file(&file).unwrap();
    }
}
