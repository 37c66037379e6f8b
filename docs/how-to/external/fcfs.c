/* First come, first served: the first job starts as soon as it fits, and hetsim says when and chooses where. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 1048576
static char ids[MOST][24], gone[MOST];
static long queue[MOST], head, tail, asked;

static const char *after(const char *text, const char *key) {
    return strstr(text, key) + strlen(key);
}

int main(void) {
    char *line = NULL;
    size_t size = 0;
    while (getline(&line, &size, stdin) > 0) {
        const char *now = after(line, "\"now\":"), *event = line;
        int digits = strcspn(now, ",");
        while ((event = strstr(event, "\"type\":\"")) != NULL) {
            event += 8;
            if (!strncmp(event, "JOB_SUBMITTED\"", 14)) {
                const char *id = after(event, "\"job_id\":\"");
                long job = atol(id + 3); /* "w0!7", or "w0!7#1" once it was stopped */
                snprintf(ids[job], sizeof ids[job], "%.*s", (int)strcspn(id, "\""), id);
                queue[tail++ % MOST] = job;
            }
            if (!strncmp(event, "JOB_KILLED\"", 11)) /* a job that waited no longer */
                gone[atol(after(event, "[\"w0!"))] = 1;
            if (!strncmp(event, "job_started\"", 12))
                head++;
            if (!strncmp(event, "job_started\"", 12) || !strncmp(event, "job_fits\"", 9))
                asked = 0; /* after "job_does_not_fit", "job_fits" follows once it does */
        }
        for (; head < tail && gone[queue[head % MOST]]; asked = 0)
            gone[queue[head++ % MOST]] = 0;
        printf("{\"now\":%.*s,\"events\":[", digits, now);
        if (head < tail && !asked++)
            printf("{\"timestamp\":%.*s,\"type\":\"EXECUTE_JOB\",\"data\":{\"job_id\":\"%s\",\"if_fits\":true}}",
                   digits, now, ids[queue[head % MOST]]);
        puts("]}");
        fflush(stdout);
    }
}
