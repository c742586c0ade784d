//! A disk of a test's own that is soon full, or read-only; gone with it.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The disk, at a folder.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts one of so many KiB at a folder, with what is in it. None, with the reason printed, where nothing may be
    /// mounted.
    pub fn at(folder: &Path, kib: u64) -> Option<Self> {
        let kept = tempfile::tempdir().unwrap();
        copy(folder, kept.path());
        let options = format!("size={kib}k,mode=0700");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "small"]).arg(folder).output();
        if !mounted.is_ok_and(|output| output.status.success()) {
            println!("SKIPPED: nothing may be mounted here: run as root");
            return None;
        }
        let this = Self(folder.to_owned());
        copy(kept.path(), folder);
        Some(this)
    }

    /// Takes all the room that is left, but for some KiB.
    pub fn fill(&self, but: u64) {
        let ballast = self.0.join("ballast");
        let mut file = File::create(&ballast).unwrap();
        let block = [1; 1024];
        while file.write_all(&block).is_ok() {}
        let length = file.metadata().unwrap().len();
        file.set_len(length.saturating_sub(but * 1024)).unwrap();
    }

    /// Gives that room back.
    pub fn free(&self) {
        fs::remove_file(self.0.join("ballast")).unwrap();
    }

    /// Lets nobody write any more, or everybody again.
    pub fn read_only(&self, is: bool) {
        let options = if is { "remount,ro" } else { "remount,rw" };
        let output = Command::new("mount").args(["-o", options]).arg(&self.0).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").arg(from.join(".")).arg(to).status().unwrap();
    assert!(status.success());
}
