//! The whole operator in a memory control group of 128 MiB, with a Proxy of each example.

use std::fs;
use std::path::{Path, PathBuf};

use proxy_operator_tests::lab::{Lab, proxy_of};

const LIMIT: u64 = 128 << 20;

/// A control group of the test's own, gone with it.
struct Group(PathBuf);

impl Group {
    fn make() -> Option<Self> {
        let name = format!("proxy-operator-test-{}", std::process::id());
        let (root, limit) = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")]
            .into_iter()
            .find(|(root, _)| Path::new(root).join("cgroup.procs").exists())?;
        let group = Self(Path::new(root).join(name));
        fs::create_dir(&group.0).ok()?;
        fs::write(group.0.join(limit), LIMIT.to_string()).ok()?;
        Some(group)
    }

    fn read(&self, names: [&str; 2]) -> String {
        names.iter().find_map(|name| fs::read_to_string(self.0.join(name)).ok()).unwrap_or_default()
    }

    fn peak(&self) -> u64 {
        self.read(["memory.max_usage_in_bytes", "memory.peak"]).trim().parse().unwrap_or(0)
    }

    /// How often something was killed for want of memory.
    fn kills(&self) -> u64 {
        let text = self.read(["memory.oom_control", "memory.events"]);
        text.lines()
            .filter_map(|line| line.strip_prefix("oom_kill "))
            .filter_map(|n| n.trim().parse::<u64>().ok())
            .sum()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_with_both_examples_stays_inside_128_mib() {
    let Some(folder) = crate::examples() else { return };
    let Some(group) = Group::make() else {
        println!("SKIPPED: no memory control group can be made: run as root");
        return;
    };
    let mut lab = Lab::without_provider().await;
    lab.take_operator().stop();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, lab.path("plugins").join(path.file_name().unwrap())).unwrap();
    }
    lab.start_operator_in(Some(group.0.clone())).await;
    let names: Vec<String> = crate::EXAMPLES.iter().map(|name| format!("p-{name}")).collect();
    for name in crate::EXAMPLES {
        lab.put(
            &format!("{name}.yaml"),
            &lab.provider(name, "").replace("{name: sandbox}", &format!("{{name: {name}}}")),
        );
        lab.put(&format!("p-{name}.yaml"), &proxy_of(name, &format!("p-{name}"), ""));
    }
    lab.wait_ready(&names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let (peak, kills) = (group.peak(), group.kills());
    println!("peak with JavaScript, Python, sandbox and static: {} MiB of {}", peak >> 20, LIMIT >> 20);
    assert_eq!(kills, 0);
    assert!(peak > 0);
    lab.take_operator().stop();
}
