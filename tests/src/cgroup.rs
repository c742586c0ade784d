//! A memory control group of a test's own, gone with it.

use std::fs;
use std::path::{Path, PathBuf};

/// The group.
pub struct Group(PathBuf);

impl Group {
    /// Makes one with this limit in bytes. None, with the reason printed, where none can be made.
    pub fn make(limit: u64) -> Option<Self> {
        let group = Self::attempt(limit);
        if group.is_none() {
            println!("SKIPPED: no memory control group can be made: run as root");
        }
        group
    }

    fn attempt(limit: u64) -> Option<Self> {
        let name = format!("proxy-operator-test-{}", std::process::id());
        let (root, file) = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")]
            .into_iter()
            .find(|(root, _)| Path::new(root).join("cgroup.procs").exists())?;
        let group = Self(Path::new(root).join(name));
        fs::create_dir(&group.0).ok()?;
        fs::write(group.0.join(file), limit.to_string()).ok()?;
        Some(group)
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The most that it held at once, in bytes.
    pub fn peak(&self) -> u64 {
        self.read(["memory.max_usage_in_bytes", "memory.peak"]).trim().parse().unwrap_or(0)
    }

    /// How often something in it was killed for want of memory.
    pub fn kills(&self) -> u64 {
        let text = self.read(["memory.oom_control", "memory.events"]);
        text.lines()
            .filter_map(|line| line.strip_prefix("oom_kill "))
            .filter_map(|n| n.trim().parse::<u64>().ok())
            .sum()
    }

    fn read(&self, names: [&str; 2]) -> String {
        names.iter().find_map(|name| fs::read_to_string(self.0.join(name)).ok()).unwrap_or_default()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}
