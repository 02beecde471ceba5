//! `oasiskv chat`, the real program, through a pipe and on a terminal: what a user types, and what
//! comes back. Deliberately not here: what single commands parse to; unit tests hold that.

use integration_tests::{Cluster, Ended, Layout, Page, Program, model};
use serde_json::Value;
use tokio::process::Command;

const TEXT: &str = include_str!("../goldens/logits_text.txt");

/// Talks to a gateway, and ends.
async fn chat(cluster: &Cluster, more: &[&str], typed: &str) -> Ended {
    let mut chat = listening(cluster, more);
    chat.write(typed).await.expect("it reads");
    chat.ended().await.expect("it ends with its input")
}

fn listening(cluster: &Cluster, more: &[&str]) -> Program {
    let url = format!("http://{}", cluster.client.0);
    let mut arguments = vec!["chat", "--url", &url, "--temperature", "0"];
    arguments.extend(more);
    Program::listening("oasiskv", &arguments).expect("it starts")
}

async fn cluster() -> Option<Cluster> {
    let model = model::path()?;
    Some(Cluster::start(Layout::Together, &model, &[]).await.expect("it starts"))
}

/// The number before these words, in each of the texts where they stand.
fn numbers(text: &str, words: &str) -> Vec<u64> {
    let pieces: Vec<&str> = text.split(words).collect();
    let before = pieces[..pieces.len() - 1].iter();
    before.filter_map(|piece| piece.rsplit([' ', '(']).next()?.parse().ok()).collect()
}

#[tokio::test]
async fn a_chat_starts_its_own_cluster_and_ends_with_its_input() {
    let Some(model) = model::path() else {
        return;
    };
    let model = format!("--model={}", model.display());
    let arguments = ["chat", &model, "--temperature=0", "--max-tokens=24"];
    let mut chat = Program::listening("oasiskv", &arguments).expect("it starts");
    chat.write("What is the capital of France?").await.expect("it reads");
    let ended = chat.ended().await.expect("it ends with its input");
    assert_eq!(ended.code, Some(0), "{}", ended.text);
    assert_eq!(ended.out, "The capital of France is Paris.", "{}", ended.text);
}

#[tokio::test]
async fn a_dialogue_remembers_and_reuses_what_was_computed() {
    let Some(cluster) = cluster().await else {
        return;
    };
    let typed = "What is the capital of France?\n/stats\nAnd of Italy?\n/stats\n/retry\n\
                 /set temperature hot\n/celar\n/clear\nAnd of Italy?\n/stats\n/bye\nnot read\n";
    let ended = chat(&cluster, &["--max-tokens=32"], typed).await;
    assert_eq!(ended.code, Some(0), "{}", ended.text);
    let answers: Vec<&str> = ended.out.lines().collect();
    let (france, italy) = ("The capital of France is Paris.", "The capital of Italy is Rome.");
    assert_eq!(answers[..3], [france, italy, italy], "{}", ended.text);
    let (prompts, cached) = (numbers(&ended.text, " tokens ("), numbers(&ended.text, " cached)"));
    assert!(prompts[1] > prompts[0] && prompts[2] < prompts[1], "{}", ended.text);
    assert!(cached[0] == 0 && cached[1] > 0, "{}", ended.text);
    for says in ["use a number from 0 to 2", "there is no command /celar", "the same again"] {
        assert!(ended.text.contains(says), "{says}: {}", ended.text);
    }
}

#[tokio::test]
async fn what_does_not_fit_the_context_leaves_the_dialogue_as_it_was() {
    let Some(cluster) = cluster().await else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("long.txt");
    std::fs::write(&file, TEXT.repeat(40)).expect("written");
    let typed = format!(
        "What is the capital of France?\n/read {}\nWhat is this about?\n/read no-such-file\n\
         And of Italy?\n/clear\nWhat is the capital of France?\n",
        file.display()
    );
    let ended = chat(&cluster, &["--max-tokens=24"], &typed).await;
    assert_eq!(ended.code, Some(1), "{}", ended.text);
    let capitals = ["France is Paris.", "Italy is Rome.", "France is Paris."];
    let answers = capitals.map(|of| format!("The capital of {of}")).join("\n");
    assert_eq!(ended.out, answers, "{}", ended.text);
    for says in ["8192 tokens", "/clear begins a new one", "no-such-file", "1 of 4 questions"] {
        assert!(ended.text.contains(says), "{says}: {}", ended.text);
    }
}

#[tokio::test]
async fn ctrl_c_stops_the_answer_frees_it_and_the_chat_goes_on_p6() {
    let Some(cluster) = cluster().await else {
        return;
    };
    let mut chat = listening(&cluster, &["--max-tokens=4000"]);
    let running = |page: &Page| page.value("oasiskv_decode_running", &[]) > 0.0;
    let idle = |page: &Page| page.value("oasiskv_decode_sessions", &[]) == 0.0;
    chat.write("List the names of all of the cities of France.\n").await.expect("it reads");
    cluster.until("decode", running).await.expect("it answers");
    chat.signal("INT").await.expect("it runs");
    cluster.until("decode", idle).await.expect("it is freed");
    let stopped = chat.line(|line| line.contains("stopped").then_some(())).await;
    stopped.expect("it says so");
    chat.write("/set max_tokens 24\n/clear\nWhat is the capital of France?\n")
        .await
        .expect("reads");
    let ended = chat.ended().await.expect("it ends with its input");
    assert_eq!(ended.code, Some(0), "{}", ended.text);
    assert!(ended.out.ends_with("The capital of France is Paris."), "{}", ended.text);
    // At the prompt it is the end.
    let mut chat = listening(&cluster, &[]);
    chat.write("/stats\n").await.expect("it reads");
    let answered = chat.line(|line| line.contains("no answer yet").then_some(())).await;
    answered.expect("it waits for a line");
    chat.signal("INT").await.expect("it runs");
    assert_eq!(chat.ended().await.expect("it ends").code, Some(0));
}

#[tokio::test]
async fn a_dialogue_is_saved_as_a_request_and_gone_on_with() {
    let Some(cluster) = cluster().await else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("capitals.json");
    let name = file.display();
    let typed = format!(
        "\"\"\"What is the capital\nof France?\"\"\"\n/save {name}\n/save {name}\n\
         /load {name}\n/system Be brief.\n/save {name}\n"
    );
    let ended = chat(&cluster, &["--max-tokens=24"], &typed).await;
    assert_eq!(ended.code, Some(0), "{}", ended.text);
    let text = std::fs::read_to_string(&file).expect("it was saved");
    let saved: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(saved["messages"][0]["content"], "Be brief.", "{text}");
    assert_eq!(saved["messages"][1]["content"], "What is the capital\nof France?", "{text}");
    let mut body = saved;
    body["messages"].as_array_mut().expect("a list").truncate(2);
    let answer = cluster.client.ask("/v1/chat/completions", &body);
    answer.await.expect("the file is the body of a request");
    // Somebody else's file is not written over.
    let load = format!("--load={name}");
    let typed = "And of Italy?\n/save Cargo.toml\n";
    let ended = chat(&cluster, &[&load, "--max-tokens=24"], typed).await;
    assert_eq!(ended.code, Some(0), "{}", ended.text);
    assert!(ended.out.contains("Rome"), "{}", ended.text);
    assert!(ended.text.contains("cannot save to Cargo.toml"), "{}", ended.text);
}

#[tokio::test]
async fn on_a_terminal_lines_are_edited_and_the_terminal_is_left_as_it_was() {
    // By a script with Python's standard library: a pseudo-terminal needs unsafe calls here.
    let python = std::env::var_os("OASISKV_TEST_PYTHON").unwrap_or_else(|| "python3".into());
    if Command::new(&python).arg("--version").output().await.is_err() {
        model::skipped("no python3 for a pseudo-terminal");
        return;
    }
    let Some(cluster) = cluster().await else {
        return;
    };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/client/terminal.py");
    let program = integration_tests::program::binary_path("oasiskv").expect("a path");
    let url = format!("http://{}", cluster.client.0);
    let mut command = Command::new(python);
    command.arg(script).arg(program).args(["chat", "--url", &url, "--temperature=0"]);
    let output = command.kill_on_drop(true).output().await.expect("Python runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{said}");
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn mistakes_are_told_before_anything_is_started() {
    for (arguments, code, says) in [
        (["chat", "--url", "gpu-box:8000"].as_slice(), 64, "http://127.0.0.1:8000"),
        (&["chat", "--url", "http://127.0.0.1:1", "--model", "x"], 64, "cannot be used with"),
        (&["chat", "--temperature", "3"], 64, "0 to 2"),
        (&["chat", "--load", "no-such-file.json"], 64, "no-such-file.json"),
        (&["chat", "--url", "http://127.0.0.1:1"], 1, "127.0.0.1:1"),
        (&["run"], 64, "PROMPT"),
        (&["run", "--print-config"], 0, "listen = \"127.0.0.1:0\""),
        (&["run", "--print-config", "--set=listen=127.0.0.1:8123"], 0, "127.0.0.1:8123"),
    ] {
        let ended = Program::start("oasiskv", arguments).expect("it starts").ended().await;
        let ended = ended.expect("it ends by itself");
        assert_eq!(ended.code, Some(code), "{arguments:?}: {}", ended.text);
        assert!(ended.text.contains(says), "{arguments:?}: {}", ended.text);
    }
}
