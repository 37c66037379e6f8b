// First come, first served: the first job starts as soon as it fits, and hetsim says when and chooses where.
use std::collections::{HashSet, VecDeque};
use std::io::{stdin, stdout, BufRead, Write};

fn word<'a>(text: &'a str, key: &str) -> &'a str {
    let rest = text.split_once(key).map_or("", |parts| parts.1);
    rest.split(|c| matches!(c, ',' | '"' | '}')).next().unwrap_or("")
}

fn main() {
    let (mut queue, mut gone, mut asked) = (VecDeque::<String>::new(), HashSet::<String>::new(), false);
    for line in stdin().lock().lines().map_while(Result::ok) {
        let now = word(&line, "\"now\":");
        for event in line.split("\"type\":\"").skip(1) {
            match event.split('"').next() {
                Some("JOB_SUBMITTED") => queue.push_back(word(event, "\"job_id\":\"").to_string()),
                Some("JOB_KILLED") => _ = gone.insert(word(event, "[\"").to_string()), // it waited no longer
                Some("job_started") => {
                    queue.pop_front();
                    asked = false;
                }
                Some("job_fits") => asked = false, // it follows "job_does_not_fit" once the job does
                _ => {}
            }
        }
        while queue.front().is_some_and(|id| gone.remove(id)) {
            queue.pop_front();
            asked = false;
        }
        let start = match queue.front() {
            Some(id) if !asked => {
                asked = true;
                let data = format!("{{\"job_id\":\"{id}\",\"if_fits\":true}}");
                format!("{{\"timestamp\":{now},\"type\":\"EXECUTE_JOB\",\"data\":{data}}}")
            }
            _ => String::new(),
        };
        println!("{{\"now\":{now},\"events\":[{start}]}}");
        stdout().flush().unwrap();
    }
}
