//! The `openai` Python package against a real cluster; its script is beside this folder.
//! Deliberately no requests of its own: what the package sends is what is shown.

use integration_tests::{Cluster, Layout, Page, model};
use tokio::process::Command;

#[tokio::test]
async fn the_openai_package_completes_streams_and_maps_errors() {
    let Some(python) = std::env::var_os("OASISKV_TEST_PYTHON") else {
        model::skipped("no Python with the openai package: set OASISKV_TEST_PYTHON");
        return;
    };
    let Some(model) = model::path() else {
        return;
    };
    let cluster = Cluster::start(Layout::Together, &model, &[]).await;
    let mut cluster = cluster.expect("it starts");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/client/openai_client.py");
    let base = format!("http://{}/v1", cluster.client.0);
    let mut command = Command::new(python);
    command.args([script, base.as_str(), cluster.model.as_str()]);
    // Loopback goes through no proxy.
    command.env("NO_PROXY", "127.0.0.1").kill_on_drop(true);
    let output = command.output().await.expect("Python runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&output.stderr);
    println!("{said}");
    assert!(output.status.success(), "{said}{complaint}");
    assert!(said.contains("is served"), "{said}");
    // Its last act was to leave in the middle of an answer.
    let idle = |page: &Page| page.value("oasiskv_decode_sessions", &[]) == 0.0;
    cluster.until("decode", idle).await.expect("it is freed");
    cluster.check_health(&[]).expect("no errors");
}
