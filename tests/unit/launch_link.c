/*
 * The meeting of processes, played by threads with a link each: who does not come, who comes twice or from
 * elsewhere, and what disturbs it. SPDX-License-Identifier: Apache-2.0
 */
#include <criterion/criterion.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fail.h"
#include "launch/internal.h"

enum { GUESTS = 12, TEXT = 512 };

/* One who wants to join. */
typedef struct guest {
    epx_launch_t launch;
    int64_t timeout_ms, delay_ms;
    epx_status_t status;
    char says[TEXT];
    int32_t ranks; /* that it found, by the names of their processes */
    int gathered;  /* 1: a collective of all gave what it should */
    int64_t took_ms;
} guest_t;

static int64_t now_ms(void) { return epx_clock_ns() / 1000000; }

static int32_t free_port(const char *host)
{
    int32_t port = 0;
    int listener = epx_launch_listen(host, 0, &port);
    if (listener < 0)
        cr_skip_test("%s cannot be listened to here", host);
    close(listener);
    return port;
}

static void *join(void *argument)
{
    guest_t *guest = argument;
    epx_link_t *link = NULL;
    int32_t all[GUESTS], said[GUESTS];
    epx_nap_ns(guest->delay_ms * 1000000);
    int64_t began_ms = now_ms();
    guest->status = epx_link_open(&guest->launch, guest->timeout_ms, &link);
    guest->took_ms = now_ms() - began_ms;
    if (guest->status != EPX_OK) {
        snprintf(guest->says, sizeof(guest->says), "%s", epx_last_error());
        return NULL;
    }
    int32_t size = epx_link_size(link);
    for (int32_t r = 0; r < size; r++) {
        all[r] = r;
        guest->ranks += epx_link_cards(link)[r].process == (int64_t)getpid();
    }
    epx_circle_t *circle = epx_circle_create(link, 77, all, size);
    epx_circle_result_t result;
    int32_t mine = 100 + guest->launch.rank;
    guest->gathered = epx_circle_gather(circle, &mine, said, sizeof(mine), 20000, &result) == EPX_OK;
    for (int32_t r = 0; r < size; r++)
        guest->gathered &= said[r] == 100 + r;
    epx_circle_destroy(&circle);
    epx_link_close(&link);
    return NULL;
}

static void invite(guest_t *guest, const char *host, int32_t port, int32_t rank, int32_t size,
                   int64_t timeout_ms)
{
    *guest = (guest_t){.launch = {.launcher = "test",
                                  .rank = rank,
                                  .size = size,
                                  .local_rank = -1,
                                  .root_port = port,
                                  .root_ports = 1,
                                  .key = 4711},
                       .timeout_ms = timeout_ms};
    snprintf(guest->launch.root_host, sizeof(guest->launch.root_host), "%s", host);
    snprintf(guest->launch.root_from, sizeof(guest->launch.root_from), "the test");
}

static void meet(guest_t *guests, int count)
{
    pthread_t thread[GUESTS];
    for (int i = 0; i < count; i++)
        cr_assert_eq(pthread_create(&thread[i], NULL, join, &guests[i]), 0);
    for (int i = 0; i < count; i++)
        pthread_join(thread[i], NULL);
}

static void all_met(const guest_t *guests, int count)
{
    for (int i = 0; i < count; i++)
        cr_expect(guests[i].status == EPX_OK && guests[i].ranks == count && guests[i].gathered,
                  "guest %d: %s %s, %d ranks, gathered %d", i, epx_status_name(guests[i].status),
                  guests[i].says, guests[i].ranks, guests[i].gathered);
}

static void says(const guest_t *guest, epx_status_t status, const char *text)
{
    cr_expect(guest->status == status && strstr(guest->says, text) != NULL, "rank %d: %s '%s', not %s '%s'",
              guest->launch.rank, epx_status_name(guest->status), guest->says, epx_status_name(status), text);
}

Test(launch_link, ranks_meet_over_either_family)
{
    static const char *const hosts[] = {"127.0.0.1", "::1", "localhost"};
    for (int h = 0; h < 3; h++) {
        guest_t guests[5];
        int32_t port = free_port(hosts[h]);
        for (int r = 0; r < 5; r++)
            invite(&guests[r], hosts[h], port, r, 5, 20000);
        meet(guests, 5);
        all_met(guests, 5);
    }
}

Test(launch_link, late_ranks_are_waited_for)
{
    guest_t guests[3];
    int32_t port = free_port("127.0.0.1");
    for (int r = 0; r < 3; r++)
        invite(&guests[r], "127.0.0.1", port, r, 3, 20000);
    guests[0].delay_ms = 700; /* the others knock at a door that is not there yet */
    guests[2].delay_ms = 1200;
    meet(guests, 3);
    all_met(guests, 3);
}

Test(launch_link, missing_ranks_are_named_in_time)
{
    static const int32_t here[] = {0, 1, 4, 7};
    guest_t guests[4];
    int32_t port = free_port("127.0.0.1");
    for (int i = 0; i < 4; i++)
        invite(&guests[i], "127.0.0.1", port, here[i], 8, 1000);
    meet(guests, 4);
    for (int i = 0; i < 4; i++) {
        says(&guests[i], EPX_ERR_TIMEOUT, "4 of 8 ranks did not come: ranks 2-3, 5-6;");
        cr_expect(guests[i].took_ms >= 900 && guests[i].took_ms < 4000, "rank %d waited %lld ms", here[i],
                  (long long)guests[i].took_ms);
    }
}

Test(launch_link, no_rank_0)
{
    guest_t guest;
    invite(&guest, "127.0.0.1", free_port("127.0.0.1"), 1, 2, 700);
    meet(&guest, 1);
    says(&guest, EPX_ERR_TIMEOUT, "rank 1 did not reach rank 0 at 127.0.0.1 port");
    says(&guest, EPX_ERR_TIMEOUT, "that the test says where it is");
    invite(&guest, "no-such-host.invalid", 5000, 1, 2, 700);
    meet(&guest, 1);
    says(&guest, EPX_ERR_TIMEOUT, "no such host");
}

/* Who comes second is shown out; the others wait for the rank that nobody has, and name it. */
Test(launch_link, a_rank_that_is_there_twice)
{
    guest_t guests[3];
    int32_t port = free_port("127.0.0.1");
    invite(&guests[0], "127.0.0.1", port, 0, 3, 1500);
    invite(&guests[1], "127.0.0.1", port, 1, 3, 1500);
    invite(&guests[2], "127.0.0.1", port, 1, 3, 1500);
    guests[2].delay_ms = 500;
    meet(guests, 3);
    says(&guests[2], EPX_ERR_ARG, "rank 1 is there already, as process");
    says(&guests[0], EPX_ERR_TIMEOUT, "1 of 3 ranks did not come: rank 2;");
    says(&guests[1], EPX_ERR_TIMEOUT, "1 of 3 ranks did not come: rank 2;");
}

Test(launch_link, another_size_is_refused)
{
    guest_t guests[3];
    int32_t port = free_port("127.0.0.1");
    invite(&guests[0], "127.0.0.1", port, 0, 2, 20000);
    invite(&guests[1], "127.0.0.1", port, 1, 4, 20000);
    invite(&guests[2], "127.0.0.1", port, 1, 2, 20000);
    guests[2].delay_ms = 300;
    meet(guests, 3);
    says(&guests[1], EPX_ERR_ARG, "rank 1 of 4");
    says(&guests[1], EPX_ERR_ARG, "came to a job of 2 ranks");
    cr_expect(guests[0].status == EPX_OK && guests[2].status == EPX_OK, "'%s' '%s'", guests[0].says,
              guests[2].says);
}

/* Two jobs that were given one port: the second one's ranks do not get into the first. */
Test(launch_link, ranks_of_another_job_stay_outside)
{
    guest_t guests[3];
    int32_t port = free_port("127.0.0.1");
    invite(&guests[0], "127.0.0.1", port, 0, 2, 20000);
    invite(&guests[1], "127.0.0.1", port, 1, 2, 1000);
    invite(&guests[2], "127.0.0.1", port, 1, 2, 20000);
    guests[1].launch.key = 4712;
    guests[2].delay_ms = 400;
    meet(guests, 3);
    says(&guests[1], EPX_ERR_TIMEOUT, "rank 1 did not reach rank 0");
    cr_expect(guests[0].status == EPX_OK && guests[2].status == EPX_OK, "'%s' '%s'", guests[0].says,
              guests[2].says);
}

/* ---- strangers --------------------------------------------------------------------------------------------------- */

typedef struct noise {
    int32_t port;
    unsigned seed;
    int knocks;
    atomic_int is_over;
} noise_t;

/* One stranger: nothing, garbage, a greeting that is cut or wrong; some stay, some go. */
static int knock(noise_t *noise, int way)
{
    uint8_t bytes[4096];
    int socket = epx_launch_connect("127.0.0.1", noise->port, epx_clock_ns() + 1000000000);
    if (socket < 0)
        return -1;
    noise->knocks++;
    epx_frame_t frame = {.magic = EPX_FRAME_MAGIC, .kind = FRAME_HELLO, .bytes = sizeof(frame_hello_t)};
    frame_hello_t hello = {.key = 4711, .rank = 1, .size = 3};
    size_t count = 0;
    switch (way % 7) {
    case 0: break; /* says nothing */
    case 1:
        for (count = (size_t)rand_r(&noise->seed) % sizeof(bytes); count > 0; count--)
            bytes[count - 1] = (uint8_t)rand_r(&noise->seed);
        count = sizeof(bytes) / 2;
        break;
    case 2: frame.bytes = UINT32_MAX; break;
    case 3: frame.kind = FRAME_GATHER; break;
    case 4: hello.rank = INT32_MIN; break;
    case 5: hello.rank = 3; break;
    default: hello.key = 0; break;
    }
    if (way % 7 >= 2) {
        memcpy(bytes, &frame, sizeof(frame));
        memcpy(bytes + sizeof(frame), &hello, sizeof(hello));
        count = sizeof(frame) + sizeof(hello);
        if (way % 3 == 0) /* cut somewhere */
            count = (size_t)rand_r(&noise->seed) % count;
    }
    (void)!send(socket, bytes, count, MSG_NOSIGNAL);
    return socket;
}

static void *disturb(void *argument)
{
    noise_t *noise = argument;
    int open[256], count = 0;
    for (int way = 0; !atomic_load(&noise->is_over) && count < 256; way++) {
        int socket = knock(noise, way);
        if (socket >= 0 && way % 2 == 0)
            open[count++] = socket; /* stays until the end */
        else if (socket >= 0)
            close(socket);
        epx_nap_ns(2000000);
    }
    while (count > 0)
        close(open[--count]);
    return NULL;
}

Test(launch_link, strangers_do_not_disturb)
{
    guest_t guests[3];
    noise_t noise = {.port = free_port("127.0.0.1"), .seed = (unsigned)now_ms()};
    pthread_t thread;
    for (int r = 0; r < 3; r++) {
        invite(&guests[r], "127.0.0.1", noise.port, r, 3, 20000);
        guests[r].delay_ms = r * 400;
    }
    unsigned seed = noise.seed;
    cr_assert_eq(pthread_create(&thread, NULL, disturb, &noise), 0);
    meet(guests, 3);
    atomic_store(&noise.is_over, 1);
    pthread_join(thread, NULL);
    cr_expect_gt(noise.knocks, 20, "only %d strangers came, seed %u", noise.knocks, seed);
    for (int r = 0; r < 3; r++)
        cr_expect(guests[r].status == EPX_OK && guests[r].ranks == 3 && guests[r].gathered,
                  "seed %u: rank %d: %s", seed, r, guests[r].says);
}
