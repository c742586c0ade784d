//! A real OpenSSH server on loopback, for one test, with keys of its own.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::plugins::Setup;
use crate::process::PATIENCE;

/// Types of host keys, and of client keys.
pub const KINDS: [&str; 3] = ["ed25519", "ecdsa", "rsa"];

/// A pair of keys as ssh-keygen writes them.
#[derive(Clone)]
pub struct Pair {
    /// The private key.
    pub private: String,
    /// Type and key, without a comment.
    pub public: String,
}

/// Makes a pair; `args` as for ssh-keygen.
pub fn pair(args: &[&str]) -> Pair {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("key");
    let made =
        Command::new("ssh-keygen").args(["-q", "-N", "", "-C", "", "-f"]).arg(&file).args(args).output().unwrap();
    assert!(made.status.success(), "{args:?}: {}", String::from_utf8_lossy(&made.stderr));
    let public = fs::read_to_string(file.with_extension("pub")).unwrap().trim().to_owned();
    Pair { private: fs::read_to_string(file).unwrap(), public }
}

/// Host keys of the three types, made once per process; one of RSA takes its time.
static HOST_KEYS: LazyLock<[Pair; 3]> = LazyLock::new(|| KINDS.map(|kind| pair(&["-t", kind])));
static OTHER_HOST_KEYS: LazyLock<[Pair; 3]> = LazyLock::new(|| KINDS.map(|kind| pair(&["-t", kind])));
static CLIENT_KEY: LazyLock<Pair> = LazyLock::new(|| pair(&["-t", "ed25519"]));

/// The key that servers let in unless told otherwise.
pub fn client_key() -> &'static Pair {
    &CLIENT_KEY
}

/// The server. It and all that it started end when it is dropped.
pub struct Sshd {
    child: Option<Child>,
    dir: TempDir,
    /// Where it listens, on 127.0.0.1.
    pub port: u16,
    /// The account to log in to.
    pub user: String,
    keys: [Pair; 3],
    options: String,
}

fn program() -> Option<PathBuf> {
    ["/usr/sbin/sshd", "/usr/local/sbin/sshd", "/usr/bin/sshd"].map(PathBuf::from).into_iter().find(|p| p.exists())
}

/// The output of `id` about whoever runs the tests.
fn id(what: &str) -> String {
    let id = Command::new("id").arg(what).output().unwrap();
    String::from_utf8(id.stdout).unwrap().trim().to_owned()
}

/// An account for sshd to know: it is in no file of this machine, and bound over them for one server alone.
const UNPRIVILEGED: &str = "proxy-lab";

impl Sshd {
    /// Starts one. None, with the reason printed, where there is no sshd.
    pub fn start() -> Option<Self> {
        Self::with("")
    }

    /// The same with further lines for its configuration, which take precedence.
    pub fn with(options: &str) -> Option<Self> {
        Self::of(id("-un"), options)
    }

    /// One with an account that is not root's: sshd passes signals on to the commands of such accounts only.
    pub fn unprivileged() -> Option<Self> {
        let own = id("-un");
        if own != "root" {
            return Self::of(own, "");
        }
        let may = Command::new("unshare").args(["--mount", "true"]).status();
        if !may.is_ok_and(|status| status.success()) {
            println!("SKIPPED: root may not mount here, and there is no account but root's");
            return None;
        }
        Self::of(UNPRIVILEGED.into(), "")
    }

    fn of(user: String, options: &str) -> Option<Self> {
        if program().is_none() {
            println!("SKIPPED: there is no sshd: install openssh-server");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        // Commands of any account leave their files here.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(dir.path().join("files")).unwrap();
        fs::set_permissions(dir.path().join("files"), fs::Permissions::from_mode(0o777)).unwrap();
        let mut server = Self { child: None, dir, port: 0, user, keys: HOST_KEYS.clone(), options: options.into() };
        server.authorize(&client_key().public);
        // Between choosing a port and listening on it somebody else may take it.
        for _ in 0..5 {
            server.port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            if server.run() {
                return Some(server);
            }
        }
        panic!("sshd did not start:\n{}", server.log())
    }

    /// Starts the program; whether it listens.
    fn run(&mut self) -> bool {
        let at = |name: &str| self.dir.path().join(name);
        let mut config = format!("{}\nPort {}\nListenAddress 127.0.0.1\n", self.options, self.port);
        for (kind, key) in KINDS.iter().zip(&self.keys) {
            let file = at(&format!("host_{kind}"));
            write_private(&file, &key.private);
            config += &format!("HostKey {}\n", file.display());
        }
        config += &format!("AuthorizedKeysFile {}\n", at("authorized_keys").display());
        // A shell that is started by sshd reads the start-up files of its home: those of whoever runs the tests are not ours.
        config += &format!("SetEnv HOME={}\n", self.dir.path().display());
        config +=
            "PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n";
        config += "PermitRootLogin prohibit-password\nLogLevel VERBOSE\nMaxStartups 200\n";
        fs::write(at("config"), config).unwrap();
        // Where root's sshd is jailed while nobody has logged in; packages make it when the service starts.
        let _ = fs::DirBuilder::new().mode(0o755).create("/run/sshd");
        let log = fs::File::options().create(true).append(true).open(at("log")).unwrap();
        let before = self.log().matches("Server listening").count();
        let mut command = Command::new(program().unwrap());
        if self.user == UNPRIVILEGED {
            let mut accounts = fs::read_to_string("/etc/passwd").unwrap();
            accounts += &format!("{UNPRIVILEGED}:x:64999:65534::{}:/bin/sh\n", self.dir.path().display());
            fs::write(at("passwd"), accounts).unwrap();
            command = Command::new("unshare");
            command.args(["--mount", "sh", "-c", "mount --bind $0 /etc/passwd && exec $@"]).arg(at("passwd"));
            command.arg(program().unwrap());
        }
        let child = command
            .args(["-D", "-e", "-f"])
            .arg(at("config"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let child = self.child.insert(child);
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until && child.try_wait().unwrap().is_none() {
            let log = fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
            if log.matches("Server listening").count() > before {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.stop();
        false
    }

    /// Ends it, with its connections and commands.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // The listener first, or it would take new connections meanwhile; its descendants are found before.
            let all = descendants(child.id());
            let _ = child.kill();
            let _ = child.wait();
            signal("-KILL", &all);
        }
    }

    /// Starts it again at the same port.
    pub fn start_again(&mut self) {
        assert!(self.run(), "sshd did not start again:\n{}", self.log());
    }

    /// Starts it again with other host keys.
    pub fn change_host_keys(&mut self) {
        self.stop();
        self.keys = OTHER_HOST_KEYS.clone();
        self.start_again();
    }

    /// Breaks all its connections; it goes on listening.
    pub fn break_connections(&self) {
        signal("-KILL", &descendants(self.child.as_ref().unwrap().id()));
    }

    /// Stops all its connections where they are: they stay open, and nobody answers. It goes on listening.
    pub fn freeze_connections(&self) {
        signal("-STOP", &descendants(self.child.as_ref().unwrap().id()));
    }

    /// Replaces the keys that may log in.
    pub fn authorize(&self, lines: &str) {
        fs::write(self.dir.path().join("authorized_keys"), format!("{lines}\n")).unwrap();
    }

    /// The public host key of a type.
    pub fn host_key(&self, kind: &str) -> &str {
        let at = KINDS.iter().position(|known| *known == kind).unwrap();
        &self.keys[at].public
    }

    /// A line of known_hosts for one of its keys.
    pub fn pin(&self, kind: &str) -> String {
        format!("[127.0.0.1]:{} {}\n", self.port, self.host_key(kind))
    }

    /// The connection to it as a manifest writes it, with its key and pins in Secrets.
    pub fn connection(&self) -> Value {
        let source = |name: &str| json!({"secretRef": {"name": name, "key": "value"}});
        json!({"ssh": {"host": "127.0.0.1", "port": self.port, "user": self.user, "permit": ["loopback"],
            "key": source("ssh-key"), "knownHosts": source("known-hosts")}})
    }

    /// A Provider that grants it as `host`.
    pub fn setup(&self) -> Setup {
        let setup = Setup::new().connection("host", self.connection());
        setup.vault.set("ssh-key", &client_key().private);
        setup.vault.set("known-hosts", &KINDS.map(|kind| self.pin(kind)).concat());
        setup
    }

    /// What it logged so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// How many lines of its log hold this.
    pub fn logged(&self, what: &str) -> usize {
        self.log().lines().filter(|line| line.contains(what)).count()
    }

    /// How many logins there were.
    pub fn logins(&self) -> usize {
        self.logged("Accepted publickey")
    }

    /// A file for what commands of a test leave; it does not exist yet.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join("files").join(name)
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        self.stop();
    }
}

fn write_private(file: &Path, text: &str) {
    fs::write(file, text).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
}

/// Processes below this one: its connections, and what they run.
fn descendants(of: u32) -> Vec<u32> {
    let mut all = vec![];
    let mut next = vec![of];
    while let Some(parent) = next.pop() {
        for task in fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten() {
            let Ok(children) = fs::File::open(task.path().join("children")) else { continue };
            let ids = BufReader::new(children).split(b' ').map_while(Result::ok);
            let ids = ids.filter_map(|id| String::from_utf8(id).ok()?.trim().parse().ok());
            let ids: Vec<u32> = ids.collect();
            all.extend(&ids);
            next.extend(ids);
        }
    }
    all
}

fn signal(name: &str, ids: &[u32]) {
    if !ids.is_empty() {
        // One that ended by itself meanwhile is as good.
        let _ = Command::new("kill").arg(name).args(ids.iter().map(u32::to_string)).stderr(Stdio::null()).status();
    }
}
