// First come, first served: a job starts once enough cores are free, and hetsim chooses which.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

type message struct {
	Now    json.Number
	Events []struct {
		Type string
		Data struct {
			JobID     string `json:"job_id"`
			Resources int    `json:"nb_resources"`
			Job       struct{ Res int }
		}
	}
}

func main() {
	cores, queue, unused := map[string]int{}, []string{}, 0
	lines := json.NewDecoder(os.Stdin)
	for heard := (message{}); lines.Decode(&heard) == nil; heard = (message{}) {
		for _, event := range heard.Events {
			switch id := event.Data.JobID; event.Type {
			case "SIMULATION_BEGINS":
				unused = event.Data.Resources
			case "JOB_SUBMITTED":
				cores[id], queue = event.Data.Job.Res, append(queue, id)
			case "JOB_COMPLETED":
				unused += cores[id]
			}
		}
		starts := []string{}
		for ; len(queue) > 0 && cores[queue[0]] <= unused; queue = queue[1:] {
			unused -= cores[queue[0]]
			start := `{"timestamp":%s,"type":"EXECUTE_JOB","data":{"job_id":%q}}`
			starts = append(starts, fmt.Sprintf(start, heard.Now, queue[0]))
		}
		fmt.Printf("{\"now\":%s,\"events\":[%s]}\n", heard.Now, strings.Join(starts, ","))
	}
}
