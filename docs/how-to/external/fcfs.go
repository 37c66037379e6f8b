// First come, first served: the first job starts as soon as it fits, and hetsim says when and chooses where.
package main

import (
	"encoding/json"
	"fmt"
	"os"
)

type message struct {
	Now    json.Number
	Events []struct {
		Type string
		Data struct {
			Type   string
			JobID  string   `json:"job_id"`
			JobIDs []string `json:"job_ids"`
		}
	}
}

func main() {
	queue, gone, asked, lines := []string{}, map[string]bool{}, false, json.NewDecoder(os.Stdin)
	for heard := (message{}); lines.Decode(&heard) == nil; heard = (message{}) {
		for _, event := range heard.Events {
			switch event.Type + event.Data.Type {
			case "JOB_SUBMITTED":
				queue = append(queue, event.Data.JobID)
			case "JOB_KILLED": // a job that waited no longer
				gone[event.Data.JobIDs[0]] = true
			case "NOTIFYjob_started":
				queue, asked = queue[1:], false
			case "NOTIFYjob_fits": // it follows "job_does_not_fit" once the job does
				asked = false
			}
		}
		for ; len(queue) > 0 && gone[queue[0]]; queue, asked = queue[1:], false {
		}
		start, form := "", `{"timestamp":%s,"type":"EXECUTE_JOB","data":{"job_id":%q,"if_fits":true}}`
		if len(queue) > 0 && !asked {
			start, asked = fmt.Sprintf(form, heard.Now, queue[0]), true
		}
		fmt.Printf("{\"now\":%s,\"events\":[%s]}\n", heard.Now, start)
	}
}
