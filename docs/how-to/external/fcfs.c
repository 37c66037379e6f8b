/* First come, first served: a job starts once enough cores are free, and hetsim chooses which. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 1048576
static char ids[MOST][24];
static long cores[MOST], queue[MOST], head, tail, unused;

static const char *after(const char *text, const char *key) {
    return strstr(text, key) + strlen(key);
}

int main(void) {
    char *line = NULL;
    size_t size = 0;
    while (getline(&line, &size, stdin) > 0) {
        const char *now = after(line, "\"now\":"), *event = line, *comma = "";
        int digits = strcspn(now, ",");
        while ((event = strstr(event, "\"type\":\"")) != NULL) {
            event += 8;
            if (!strncmp(event, "SIMULATION_BEGINS\"", 18))
                unused = atol(after(event, "\"nb_resources\":"));
            if (!strncmp(event, "JOB_SUBMITTED\"", 14)) {
                const char *id = after(event, "\"job_id\":\"");
                long job = atol(id + 3); /* "w0!7", or "w0!7#1" once it was stopped */
                snprintf(ids[job], sizeof ids[job], "%.*s", (int)strcspn(id, "\""), id);
                cores[job] = atol(after(event, "\"res\":"));
                queue[tail++ % MOST] = job;
            }
            if (!strncmp(event, "JOB_COMPLETED\"", 14))
                unused += cores[atol(after(event, "\"job_id\":\"w0!"))];
        }
        printf("{\"now\":%.*s,\"events\":[", digits, now);
        for (; head < tail && cores[queue[head % MOST]] <= unused; head++, comma = ",") {
            printf("%s{\"timestamp\":%.*s,\"type\":\"EXECUTE_JOB\",", comma, digits, now);
            printf("\"data\":{\"job_id\":\"%s\"}}", ids[queue[head % MOST]]);
            unused -= cores[queue[head % MOST]];
        }
        puts("]}");
        fflush(stdout);
    }
}
