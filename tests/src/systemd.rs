//! A real systemd, booted in namespaces of its own over a throw-away copy of this machine's file system.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::process::PATIENCE;

/// `$1`: an empty folder; `$2`: the checkout. What is started from now on sees nothing of the network but its own loopback,
/// and its changes to the file system are in memory.
const BOOT: &str = r#"set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$1" && cd "$1" && mkdir upper work root
mount -t overlay overlay -o "lowerdir=/,upperdir=upper,workdir=work" root && cd root
rm -rf etc/systemd/system/*.wants
mkdir -p usr/src/proxy-operator && mount --bind -o ro "$2" usr/src/proxy-operator
for dir in run tmp dev; do mount -t tmpfs tmpfs $dir; done
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    mount -t cgroup2 cgroup2 sys/fs/cgroup
else
    mount -t tmpfs tmpfs sys/fs/cgroup && mkdir sys/fs/cgroup/systemd sys/fs/cgroup/unified
    mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd
    mount -t cgroup2 cgroup2 sys/fs/cgroup/unified
fi
for device in null zero full random urandom tty; do : >dev/$device; mount --bind /dev/$device dev/$device; done
mkdir dev/pts dev/shm && mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts && ln -s pts/ptmx dev/ptmx
: >dev/console
ip link set lo up
pivot_root . mnt && cd /
exec env -i container=lxc /lib/systemd/systemd --system --unit=basic.target
"#;

/// The booted system; it ends when this is dropped.
pub struct Systemd {
    unshare: Child,
    init: String,
    groups: Vec<PathBuf>,
    dir: TempDir,
}

impl Systemd {
    /// Boots it. None, with the reason printed, where that cannot be.
    pub fn boot() -> Option<Self> {
        let has = |path: &str| Path::new(path).exists();
        if !has("/lib/systemd/systemd") || !has("/usr/bin/unshare") {
            println!("SKIPPED: there is no systemd: install systemd");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir(&root).unwrap();
        let log = File::create(dir.path().join("boot.log")).unwrap();
        // Groups of its own, so that what systemd makes there can be taken away again.
        let name = format!("proxy-operator-systemd-{}", std::process::id());
        let roots = ["/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(Path::new);
        let groups: Vec<PathBuf> =
            roots.iter().filter(|root| root.join("cgroup.procs").exists()).map(|root| root.join(&name)).collect();
        if groups.is_empty() || groups.iter().any(|group| fs::create_dir(group).is_err()) {
            println!("SKIPPED: no control group can be made: run as root");
            return None;
        }
        let mut enter = String::new();
        for group in &groups {
            enter += &format!("echo $$ >{}/cgroup.procs; ", group.display());
        }
        let unshare =
            "exec unshare --fork --pid --kill-child --mount --uts --ipc --net --cgroup sh -c \"$0\" sh \"$1\" \"$2\"";
        let unshare = Command::new("sh")
            .args(["-ec", &(enter + unshare), BOOT])
            .arg(root)
            .arg(crate::root())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut this = Self { unshare, init: String::new(), groups, dir };
        this.wait("systemd is up", |this| {
            let children = format!("/proc/{0}/task/{0}/children", this.unshare.id());
            this.init = fs::read_to_string(children).unwrap_or_default().trim().to_owned();
            let up = !this.init.is_empty() && this.run(&["systemctl", "is-active", "basic.target"]).status.success();
            up.then_some(())
        });
        Some(this)
    }

    /// Runs a command in there, as root.
    pub fn run(&self, command: &[&str]) -> Output {
        let enter = ["--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup", "--wd=/"];
        let mut nsenter = Command::new("nsenter");
        nsenter
            .args(["--target", &self.init])
            .args(enter)
            .args(["env", "--chdir=/usr/src/proxy-operator", "timeout", "60"])
            .args(command);
        nsenter.stdin(Stdio::null()).output().unwrap()
    }

    /// The same, which must succeed; answers what it printed.
    pub fn does(&self, command: &[&str]) -> String {
        let Output { status, stdout, stderr } = self.run(command);
        let [stdout, stderr] = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(status.success(), "{command:?}\n{stdout}\n{stderr}\n{}", self.journal());
        stdout
    }

    /// Waits until the condition answers something.
    pub fn wait<T>(&mut self, what: &str, mut condition: impl FnMut(&mut Self) -> Option<T>) -> T {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(met) = condition(self) {
                return met;
            }
            if Instant::now() > until {
                let log = fs::read_to_string(self.dir.path().join("boot.log")).unwrap_or_default();
                panic!("waited in vain until {what}\n{log}\n{}", self.journal());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn journal(&self) -> String {
        String::from_utf8_lossy(&self.run(&["systemctl", "status", "--no-pager", "-l", "proxy-operator"]).stdout).into()
    }
}

impl Drop for Systemd {
    fn drop(&mut self) {
        // With --kill-child all of its namespace ends, too.
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
        let until = Instant::now() + Duration::from_secs(5);
        for group in &self.groups {
            while group.exists() && Instant::now() < until {
                let _ = Command::new("find")
                    .arg(group)
                    .args(["-depth", "-type", "d", "-exec", "rmdir", "{}", "+"])
                    .output();
            }
        }
    }
}
