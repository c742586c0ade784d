//! The examples pass the conformance kit, from what `plugin compile` made of them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use proxy_operator::sandbox_cloud::{self, Options};
use proxy_operator_tests::authors::sandbox_provider;
use tokio_util::sync::CancellationToken;

use crate::{EXAMPLES, examples};

#[tokio::test(flavor = "multi_thread")]
async fn both_keep_every_rule() {
    let Some(folder) = examples() else { return };
    let options = Options::new("127.0.0.1:0".parse().unwrap(), "127.0.0.1", "token-of-the-cloud");
    let cloud = sandbox_cloud::bind(options).await.unwrap();
    let (address, stop) = (cloud.local_addr(), CancellationToken::new());
    let serving = tokio::spawn(cloud.serve(stop.clone()));
    let dir = tempfile::tempdir().unwrap();
    for name in EXAMPLES {
        let manifest = dir.path().join(format!("{name}.yaml"));
        fs::write(&manifest, sandbox_provider(name, address, "token-of-the-cloud")).unwrap();
        fs::set_permissions(&manifest, fs::Permissions::from_mode(0o600)).unwrap();
        let mut command = Command::new(proxy_operator_tests::binary());
        command.args(["plugin", "test"]).arg(folder.join(format!("{name}.wasm"))).arg("--provider").arg(&manifest);
        let run = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
        let said = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success(), "{name}:\n{said}{}", String::from_utf8_lossy(&run.stderr));
        // No script, so `create-foreign` is not asked; and Python's own runtime draws at random, JavaScript's does not.
        let aside = if name == "sandbox-py" { 1 } else { 2 };
        assert!(said.contains(&format!(" 0 failed, {aside} not applicable")), "{said}");
    }
    stop.cancel();
    serving.await.unwrap();
}
