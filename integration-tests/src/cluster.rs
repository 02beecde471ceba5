//! A cluster on free ports: all roles in one process, or each in its own.
//! What it deliberately does not do: know what roles are made of; it reads what they print.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::Value;
use tokio::time::{interval, timeout};

use crate::http::Client;
use crate::metrics::Page;
use crate::program::{Ended, Program};

/// Longest wait for readiness: a bound against hanging, not a measure.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often a page is read while something is waited for.
const POLL: Duration = Duration::from_millis(5);

/// How many processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `oasiskv up`.
    Together,
    /// One for each role, with two memory nodes: six.
    Apart,
}

/// A setting that is not the default: role (`""` for the all-in-one program), key, value.
pub type Setting<'a> = (&'a str, &'a str, &'a str);

/// One role.
#[derive(Debug)]
pub struct Node {
    /// As in `up`'s table: `gateway`, `coordinator`, `prefill`, `decode`, `memory-0`, `memory-1`.
    pub role: String,
    /// Probes and metrics.
    pub admin: SocketAddr,
    /// Where it serves clients or its peers.
    pub address: String,
    /// Its own process; `None` where all share one.
    program: Option<Program>,
}

/// Running programs that together serve the API. Dropping kills them.
#[derive(Debug)]
pub struct Cluster {
    /// The API.
    pub client: Client,
    /// What the API calls the model.
    pub model: String,
    nodes: Vec<Node>,
    /// The process of the all-in-one layout.
    together: Option<Program>,
    /// For a role that is started again.
    settings: Vec<(String, String, String)>,
}

/// Order of start: who others need comes first.
const ROLES: [&str; 6] = ["coordinator", "memory-0", "memory-1", "prefill", "decode", "gateway"];

impl Cluster {
    /// Starts a cluster with this model and waits until it serves.
    ///
    /// # Errors
    /// When it does not come up; with what was printed.
    pub async fn start(
        layout: Layout,
        model: &Path,
        settings: &[Setting<'_>],
    ) -> anyhow::Result<Self> {
        let model = model.to_str().context("the model's path is UTF-8")?;
        let mut all = Vec::new();
        for role in ["", "prefill", "decode", "gateway"] {
            all.push((role, "model.name", model));
        }
        all.extend(settings);
        let owned =
            |&(role, key, value): &Setting<'_>| (role.to_owned(), key.to_owned(), value.to_owned());
        let settings: Vec<_> = all.iter().map(owned).collect();
        let (nodes, together) = match layout {
            Layout::Together => {
                let (nodes, program) = together(&settings).await?;
                (nodes, Some(program))
            }
            Layout::Apart => (apart(&settings).await?, None),
        };
        let gateway = nodes.iter().find(|node| node.role == "gateway");
        let address = gateway.context("there is a gateway")?.address.parse()?;
        let mut cluster =
            Self { client: Client(address), model: String::new(), nodes, together, settings };
        cluster.ready(2).await?;
        let models = cluster.client.get("/v1/models").await?.json();
        cluster.model = models["data"][0]["id"].as_str().context("an id")?.to_owned();
        Ok(cluster)
    }

    /// Waits until the gateway is ready and the coordinator hears so many memory nodes.
    ///
    /// # Errors
    /// When that does not come; with the page that says why.
    pub async fn ready(&self, memory_nodes: u32) -> anyhow::Result<()> {
        let mut last = String::new();
        let wait = async {
            let mut ticks = interval(POLL);
            loop {
                ticks.tick().await;
                let page = self.client.get("/readyz").await?;
                let heard = self
                    .page("coordinator")
                    .await?
                    .value("oasiskv_coordinator_nodes", &["node_role=\"memory\""]);
                if page.status == 200 && heard >= f64::from(memory_nodes) {
                    return anyhow::Ok(());
                }
                last = page.text;
            }
        };
        let waited = timeout(PATIENCE, wait).await;
        waited.unwrap_or_else(|_| bail!("not ready: {last}"))
    }

    /// The metrics of a role.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn page(&self, role: &str) -> anyhow::Result<Page> {
        let node = self.node(role)?;
        let answer = Client(node.admin).get("/metrics").await;
        Ok(Page::new(answer.with_context(|| role.to_owned())?.text))
    }

    /// Reads the metrics of a role until they are as wanted.
    ///
    /// # Errors
    /// When they do not get so; with the last page.
    pub async fn until(
        &self,
        role: &str,
        mut wanted: impl FnMut(&Page) -> bool,
    ) -> anyhow::Result<()> {
        let mut last = Page::default();
        let wait = async {
            let mut ticks = interval(POLL);
            loop {
                ticks.tick().await;
                last = self.page(role).await?;
                if wanted(&last) {
                    return anyhow::Ok(());
                }
            }
        };
        let waited = timeout(PATIENCE, wait).await;
        waited.unwrap_or_else(|_| bail!("{role} does not get there:\n{}", last.text()))
    }

    /// Roles whose name begins so.
    pub fn roles(&self, prefix: &str) -> impl Iterator<Item = &str> {
        let names = self.nodes.iter().map(|node| node.role.as_str());
        names.filter(move |role| role.starts_with(prefix))
    }

    /// The process of all roles. Only where they share one.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn process(&self) -> anyhow::Result<u32> {
        self.together.as_ref().context("one process for all roles")?.id()
    }

    /// Kills the process of a role the hard way. Only where each role has its own.
    ///
    /// # Errors
    /// When there is no such process.
    pub async fn kill(&mut self, role: &str) -> anyhow::Result<()> {
        let node = self.nodes.iter_mut().find(|node| node.role == role);
        let program = node.and_then(|node| node.program.as_mut());
        program.context("a process of its own")?.kill().await
    }

    /// Starts a role that was killed again, as a new process.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn restart(&mut self, role: &str) -> anyhow::Result<()> {
        let registry = self.node("coordinator")?.address.clone();
        let fresh = one(role, &registry, &self.settings).await?;
        self.nodes.retain(|node| node.role != role);
        self.nodes.push(fresh);
        Ok(())
    }

    /// Fails if a process has ended on its own, or any has printed an error or a panic; `allowed`
    /// are the words of errors that the test brings about.
    ///
    /// # Errors
    /// With what was printed.
    pub fn check_health(&mut self, allowed: &[&str]) -> anyhow::Result<()> {
        let own = self.nodes.iter_mut().filter_map(|node| {
            let role = node.role.clone();
            node.program.as_mut().map(|program| (role, program))
        });
        let shared = self.together.iter_mut().map(|p| ("oasiskv".to_owned(), p));
        for (role, program) in own.chain(shared) {
            let said = program.said();
            let bad = said.lines().find(|line| {
                let error = line.contains("\"ERROR\"") || line.contains("panicked");
                error && !allowed.iter().any(|word| line.contains(word))
            });
            if let Some(line) = bad {
                bail!("{role} printed: {line}");
            }
        }
        Ok(())
    }

    /// Asks every process to end, who depends on others first, and waits until they have.
    ///
    /// # Errors
    /// When one goes on.
    pub async fn terminate(mut self) -> anyhow::Result<Vec<(String, Ended)>> {
        let mut programs: Vec<(String, Program)> = Vec::new();
        programs.extend(self.together.take().map(|p| ("oasiskv".to_owned(), p)));
        for node in self.nodes.iter_mut().rev() {
            let program = node.program.take();
            programs.extend(program.map(|program| (node.role.clone(), program)));
        }
        let mut ends = Vec::new();
        for (role, mut program) in programs {
            program.terminate().await?;
            ends.push((role, program.ended().await?));
        }
        Ok(ends)
    }

    fn node(&self, role: &str) -> anyhow::Result<&Node> {
        let node = self.nodes.iter().find(|node| node.role == role);
        node.with_context(|| format!("no role {role}"))
    }
}

fn arguments(role: &str, settings: &[(String, String, String)]) -> Vec<String> {
    let own = settings.iter().filter(|(of, _, _)| of == role);
    own.map(|(_, key, value)| format!("--set={key}={value}"))
        .chain(["--log-format=json".to_owned()])
        .collect()
}

/// `oasiskv up`, and the roles of the table that it prints.
async fn together(settings: &[(String, String, String)]) -> anyhow::Result<(Vec<Node>, Program)> {
    let mut arguments = arguments("", settings);
    arguments.splice(0..0, ["up".to_owned(), "--listen=127.0.0.1:0".to_owned()]);
    let mut program = Program::start("oasiskv", &arguments)?;
    program.line(|line| line.starts_with("Stop it").then_some(())).await?;
    let said = program.said();
    let table = said.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (role, address, admin) = (words.next()?, words.next()?, words.next()?);
        Some(Node {
            role: role.to_owned(),
            address: address.to_owned(),
            admin: admin.parse().ok()?,
            program: None,
        })
    });
    Ok((table.collect(), program))
}

async fn apart(settings: &[(String, String, String)]) -> anyhow::Result<Vec<Node>> {
    let mut nodes: Vec<Node> = Vec::new();
    for role in ROLES {
        let registry = nodes.first().map_or(String::new(), |first| first.address.clone());
        nodes.push(one(role, &registry, settings).await?);
    }
    Ok(nodes)
}

/// One role's program; the two memory nodes are two of one kind.
async fn one(
    role: &str,
    registry: &str,
    settings: &[(String, String, String)],
) -> anyhow::Result<Node> {
    let kind = if role.starts_with("memory") { "memory-node" } else { role };
    let mut arguments = arguments(kind, settings);
    arguments.push("--set=admin.listen=127.0.0.1:0".to_owned());
    match kind {
        "coordinator" => arguments.push("--set=listen=127.0.0.1:0".to_owned()),
        "gateway" => {
            arguments.push("--set=listen=127.0.0.1:0".to_owned());
            arguments.push(format!("--set=coordinator.address={registry}"));
            arguments.push("--set=coordinator.refresh=50ms".to_owned());
        }
        _ => arguments.push(format!("--set=membership.coordinator={registry}")),
    }
    if kind == "memory-node" {
        arguments.push(format!("--set=node.id={role}"));
    }
    let mut program = Program::start(&format!("oasiskv-{kind}"), &arguments)?;
    let (address, admin) = program.line(serving).await?;
    Ok(Node { role: role.to_owned(), admin, address, program: Some(program) })
}

/// The line that says where a role serves.
fn serving(line: &str) -> Option<(String, SocketAddr)> {
    let line: Value = serde_json::from_str(line).ok()?;
    line["message"].as_str().filter(|message| message.contains("serv"))?;
    let address = line["address"].as_str().or(line["control"].as_str())?;
    let admin = line["admin"].as_str()?.parse().ok()?;
    Some((address.to_owned(), admin))
}
