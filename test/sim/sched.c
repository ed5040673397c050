/* SPDX-License-Identifier: MIT
 *
 * sched.c - threads as coroutines, one clock, one source of chance.
 *
 * A step is one thing that can happen now: a coroutine that may run, runs until
 * it sleeps, or something that is due, happens.  Which of them is drawn.  Only
 * when there is nothing left does the clock move, to the next thing due.
 * So a seed decides the whole order of events, and nothing else does.
 *
 * Because there is one thread, a mutex of the core that is held across a switch
 * would stop the program for ever; it is looked for at every switch and
 * reported, since the core promises not to do that.
 */
#include "sim.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#if SIM_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#define STACK_SIZE (SIM_ASAN ? 512 << 10 : 128 << 10)
#define TASKS_MAX  128
#define STUCK      200000 /* steps without the clock moving */

struct sim_task {
    ucontext_t context;
    struct sim_proc *proc;
    char *stack;
    void *(*run)(void *);
    void *arg;
    const void *on;  /* what it sleeps on, or NULL */
    int64_t wake_at; /* us */
    bool done;
    void *fake_stack; /* of the sanitizer */
};

struct sched_event {
    int64_t at;
    void (*fn)(void *);
    void *arg;
};

/* Memory that lives as long as the world. */
struct sched_chunk {
    struct sched_chunk *next;
    size_t used;
    _Alignas(16) char bytes[64 << 10];
};

struct sim sim;

static struct sim_task *tasks[TASKS_MAX];
static int ntasks;
static struct sim_task *running;
static ucontext_t main_context;
static void *main_fake_stack;
static struct sched_event *events;
static size_t nevents, events_room;
static struct sched_chunk *chunks, *spare;
static char *stacks[TASKS_MAX]; /* free ones */
static int nstacks;
static int64_t moved_at; /* step of the last move of the clock */

/* ---- chance ------------------------------------------------------------ */

/* splitmix64 */
uint64_t sim_rand(void)
{
    uint64_t z = sim.rng += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

int64_t sim_below(int64_t n)
{
    return n > 0 ? (int64_t)(sim_rand() % (uint64_t)n) : 0;
}

bool sim_chance(int per_mille)
{
    return per_mille > 0 && sim_below(1000) < per_mille;
}

/* ---- memory ------------------------------------------------------------ */

void *sim_alloc(size_t size)
{
    struct sched_chunk *chunk = chunks;

    size = (size + 15) & ~(size_t)15;
    if (!chunk || chunk->used + size > sizeof(chunk->bytes)) {
        chunk = spare;
        if (chunk)
            spare = chunk->next;
        else if (!(chunk = malloc(sizeof(*chunk))))
            abort();
        chunk->next = chunks;
        chunk->used = 0;
        chunks = chunk;
    }
    chunk->used += size;
    return memset(chunk->bytes + chunk->used - size, 0, size);
}

static char *stack_get(void)
{
    char *stack;

    if (nstacks)
        return stacks[--nstacks];
    stack = mmap(NULL, STACK_SIZE, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED || mprotect(stack, 4096, PROT_NONE))
        abort();
    return stack;
}

static void stack_put(char *stack)
{
    if (!stack)
        return;
#if SIM_ASAN
    __asan_unpoison_memory_region(stack + 4096, STACK_SIZE - 4096);
#endif
    stacks[nstacks++] = stack;
}

/* ---- switching --------------------------------------------------------- */

#if SIM_ASAN
static const void *main_bottom; /* of the scheduler's own stack */
static size_t main_size;
#endif

/* Tell the sanitizer which stack comes next: the task's, or NULL for the
 * scheduler's. */
static void switch_begin(void **fake, const char *stack)
{
#if SIM_ASAN
    __sanitizer_start_switch_fiber(fake, stack ? stack : main_bottom,
                                   stack ? STACK_SIZE : main_size);
#else
    (void)fake;
    (void)stack;
#endif
}

static void switch_end(void *fake, bool from_main)
{
#if SIM_ASAN
    __sanitizer_finish_switch_fiber(fake, from_main ? &main_bottom : NULL,
                                    from_main ? &main_size : NULL);
#else
    (void)fake;
    (void)from_main;
#endif
}

/* Back to the scheduler; returns when the task is to run again. */
static void task_leave(struct sim_task *task)
{
    switch_begin(task->done ? NULL : &task->fake_stack, NULL);
    swapcontext(&task->context, &main_context);
    switch_end(task->fake_stack, true);
}

static void task_main(void)
{
    struct sim_task *task = running;

    switch_end(NULL, true);
    task->run(task->arg);
    task->done = true;
    sim_ring(task);
    task_leave(task);
}

static void task_run(struct sim_task *task)
{
    running = task;
    sim.proc = task->proc;
    task->on = NULL;
    task->wake_at = SIM_NEVER;
    switch_begin(&main_fake_stack, task->stack);
    swapcontext(&main_context, &task->context);
    switch_end(main_fake_stack, false);
    running = NULL;
    sim.proc = NULL;
}

struct sim_task *sim_spawn(struct sim_proc *proc, void *(*run)(void *),
                           void *arg)
{
    struct sim_task *task = sim_alloc(sizeof(*task));

    if (ntasks == TASKS_MAX)
        abort();
    task->proc = proc;
    task->run = run;
    task->arg = arg;
    task->wake_at = sim.now;
    task->stack = stack_get();
    getcontext(&task->context);
    task->context.uc_stack.ss_sp = task->stack;
    task->context.uc_stack.ss_size = STACK_SIZE;
    makecontext(&task->context, task_main, 0);
    /* The sanitizer would clean the whole stack at every switch. */
    task->context.uc_stack.ss_size = 0;
    tasks[ntasks++] = task;
    return task;
}

static void task_drop(int i)
{
    stack_put(tasks[i]->stack);
    tasks[i]->stack = NULL;
    tasks[i] = tasks[--ntasks];
}

void sim_forget_tasks(const struct sim_proc *proc)
{
    int i = 0;

    while (i < ntasks)
        if (tasks[i]->proc == proc && tasks[i] != running)
            task_drop(i);
        else
            i++;
}

/* ---- sleeping ---------------------------------------------------------- */

static bool mutex_is_free(struct sim_proc *proc)
{
    if (!proc->client)
        return true;
    if (pthread_mutex_trylock(&proc->client->mu))
        return false;
    pthread_mutex_unlock(&proc->client->mu);
    return true;
}

void sim_wait_on(const void *what, int64_t until)
{
    struct sim_task *task = running;

    if (!mutex_is_free(task->proc))
        sim_fail("S0: process %d sleeps with its client's mutex held",
                 task->proc->id);
    task->on = what;
    task->wake_at = until;
    task_leave(task);
}

void sim_ring(const void *what)
{
    int i;

    for (i = 0; i < ntasks; i++)
        if (tasks[i]->on == what) {
            tasks[i]->on = NULL;
            tasks[i]->wake_at = sim.now;
        }
}

void sim_sleep(int64_t us)
{
    sim_wait_on(NULL, sim.now + us);
}

/* ---- the steps --------------------------------------------------------- */

void sim_at(int64_t at, void (*fn)(void *), void *arg)
{
    if (nevents == events_room) {
        events_room = events_room ? events_room * 2 : 64;
        events = realloc(events, events_room * sizeof(*events));
        if (!events)
            abort();
    }
    events[nevents++] = (struct sched_event){at, fn, arg};
}

static bool task_can_run(const struct sim_task *task)
{
    return !task->done && !task->proc->paused && task->wake_at <= sim.now;
}

/* Draw one of the things that can happen now: an index into the events, then
 * into the tasks; -1: nothing.  *next is when something will. */
static int64_t step_draw(int64_t *next)
{
    int64_t choice = -1, n = 0;
    size_t i;
    int j;

    *next = SIM_NEVER;
    for (i = 0; i < nevents; i++) {
        if (events[i].at <= sim.now) {
            if (sim_below(++n) == 0)
                choice = (int64_t)i;
        } else if (events[i].at < *next) {
            *next = events[i].at;
        }
    }
    for (j = 0; j < ntasks; j++) {
        if (task_can_run(tasks[j])) {
            if (sim_below(++n) == 0)
                choice = (int64_t)nevents + j;
        } else if (!tasks[j]->done && !tasks[j]->proc->paused &&
                   tasks[j]->wake_at < *next) {
            *next = tasks[j]->wake_at;
        }
    }
    return choice;
}

static void step_do(size_t choice)
{
    struct sched_event event;
    int j;

    sim.steps++;
    sim.hash = (sim.hash ^ choice ^ (uint64_t)sim.now) * 1099511628211u;
    if (choice < nevents) {
        event = events[choice];
        events[choice] = events[--nevents];
        event.fn(event.arg);
        return;
    }
    j = (int)(choice - nevents);
    task_run(tasks[j]);
    for (j = ntasks - 1; j >= 0; j--) /* It may be another place by now. */
        if (tasks[j]->done)
            task_drop(j);
}

static bool sched_run(int64_t until, bool while_busy)
{
    int64_t next, choice;

    while (!sim.failed && !(while_busy && !sim.busy)) {
        choice = step_draw(&next);
        if (choice >= 0) {
            step_do((size_t)choice);
            sim_check_step();
            if ((int64_t)sim.steps - moved_at > STUCK)
                sim_fail("S0: time does not go on: something spins");
            continue;
        }
        if (next > until) {
            sim.now = until;
            break;
        }
        sim.now = next;
        moved_at = (int64_t)sim.steps;
        sim_check_step();
    }
    return !sim.failed;
}

bool sim_run(int64_t until)
{
    return sched_run(until, false);
}

bool sim_run_while_busy(int64_t until)
{
    return sched_run(until, true);
}

/* ---- what the core sees of it ------------------------------------------ */

static int64_t env_now(void)
{
    return sim.now / 1000 + (sim.proc ? sim.proc->offset : 0);
}

static int64_t env_us(int64_t until)
{
    if (until == HFI_NEVER)
        return SIM_NEVER;
    until = (until - running->proc->offset) * 1000;
    return until < sim.now ? sim.now : until;
}

static void env_random(void *buf, size_t len)
{
    unsigned char *at = buf;

    while (len--)
        *at++ = (unsigned char)sim_rand();
}

/* Sleep may end for no reason. */
static int64_t env_restless(int64_t until)
{
    int64_t early = sim.now + sim_below(20000);

    return sim_chance(10) && early < until ? early : until;
}

static void env_wait(struct hfi_cond *cond, pthread_mutex_t *mu, int64_t until)
{
    pthread_mutex_unlock(mu);
    sim_wait_on(cond, env_restless(env_us(until)));
    pthread_mutex_lock(mu);
}

static void env_wake(struct hfi_cond *cond)
{
    sim_ring(cond);
}

static void env_notifier_wait(struct hfi_notifier *notifier, int64_t until)
{
    if (notifier->sim)
        sim_sleep(0);
    else
        sim_wait_on(notifier, env_restless(env_us(until)));
    notifier->sim = NULL;
}

static void env_notifier_notify(struct hfi_notifier *notifier)
{
    notifier->sim = notifier;
    sim_ring(notifier);
}

static bool env_start(struct hfi_thread *thread, void *(*run)(void *),
                      void *arg)
{
    if (sim.proc->client && sim_chance(sim.weather.no_thread))
        return false;
    thread->sim = sim_spawn(sim.proc, run, arg);
    return true;
}

static void env_join(struct hfi_thread *thread)
{
    struct sim_task *task = thread->sim;

    while (!task->done)
        sim_wait_on(task, SIM_NEVER);
}

static const struct hfi_env env_table = {
    .now = env_now,
    .random = env_random,
    .wait = env_wait,
    .wake = env_wake,
    .notifier_wait = env_notifier_wait,
    .notifier_notify = env_notifier_notify,
    .start = env_start,
    .join = env_join,
};

void sim_sched_begin(void)
{
    hfi_env = &env_table;
    moved_at = 0;
}

void sim_sched_end(void)
{
    struct sched_chunk *chunk;

    while (ntasks)
        task_drop(ntasks - 1);
    nevents = 0;
    while ((chunk = chunks)) {
        chunks = chunk->next;
        chunk->next = spare;
        spare = chunk;
    }
}
