/*
 * As much of NVML's binary interface as is used here, under our own names: the library is opened at run time,
 * and its header need not be there to build. Numbers are those of its public header, version 12; they do not
 * change. SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_HEALTH_NVML_TYPES_H
#define EPX_HEALTH_NVML_TYPES_H

enum {
    GPU_SUCCESS = 0,
    GPU_NOT_SUPPORTED = 3,
    GPU_NOT_FOUND = 6,
    GPU_TIMEOUT = 10,
    GPU_FUNCTION_MISSING = 13, /* what NVML says for a function that a library lacks */
    GPU_LINKS_MOST = 18,
    GPU_XID_EVENT = 8,
    GPU_CLOCK_PROCESSORS = 1,

    GPU_FIELD_LINK_COUNT = 91,
    GPU_FIELD_CRC_FLIT_TOTAL = 38,
    GPU_FIELD_CRC_DATA_TOTAL = 45,
    GPU_FIELD_REPLAY_TOTAL = 52,
    GPU_FIELD_RECOVERY_TOTAL = 59,
    /* of one link, which is the scope: up to NVLink 4 (Hopper) */
    GPU_FIELD_DL_REPLAYS = 161,
    GPU_FIELD_DL_RECOVERIES = 162,
    GPU_FIELD_DL_CRC_ERRORS = 163,
    GPU_FIELD_LINK_SPEED = 164,   /* MB/s */
    GPU_FIELD_LINK_VERSION = 166, /* NVML's number of the generation */
    /* from NVLink 5 (Blackwell) on */
    GPU_FIELD_RCV_ERRORS = 208,
    GPU_FIELD_INTEGRITY_ERRORS = 211,
    GPU_FIELD_RECOVERIES_GOOD = 213,
    GPU_FIELD_RECOVERIES_FAILED = 214,
    GPU_FIELD_RECOVERIES = 215,
    GPU_FIELD_EFFECTIVE_ERRORS = 219,
    GPU_FIELD_EFFECTIVE_BER = 220,
    GPU_FIELD_SYMBOL_BER = 222,
    /* what the driver wants done with the GPU: 0 nothing */
    GPU_FIELD_RECOVERY_ACTION = 230
};

enum { GPU_LINK_VERSION_4 = 6 }; /* NVLink 4; 5 is 7 */

/* Counters of a link by a function of their own, up to NVLink 4. */
typedef enum gpu_link_counter {
    GPU_LINK_REPLAYS = 0,
    GPU_LINK_RECOVERIES = 1,
    GPU_LINK_CRC_FLIT_ERRORS = 2,
    GPU_LINK_CRC_DATA_ERRORS = 3,
    GPU_LINK_ECC_ERRORS = 4,
    GPU_LINK_NO_COUNTER = -1
} gpu_link_counter_t;

typedef enum gpu_value_kind {
    GPU_DOUBLE = 0,
    GPU_UNSIGNED_INT,
    GPU_UNSIGNED_LONG,
    GPU_UNSIGNED_LONG_LONG,
    GPU_SIGNED_LONG_LONG,
    GPU_SIGNED_INT,
    GPU_UNSIGNED_SHORT
} gpu_value_kind_t;

typedef struct gpu_field {
    unsigned int id, scope;
    long long timestamp_us, latency_us;
    gpu_value_kind_t kind;
    int code;
    union {
        double real;
        int whole;
        unsigned int natural;
        unsigned long long_natural;
        unsigned long long longest_natural;
        signed long long longest_whole;
        unsigned short short_natural;
    } value;
} gpu_field_t;

/* Percent of the last sample period. */
typedef struct gpu_use {
    unsigned int processors, memory;
} gpu_use_t;

/* A process with a context, and what one has used in a sample period. */
typedef struct gpu_process {
    unsigned int pid;
    unsigned long long memory_bytes;
    unsigned int instance, compute_instance;
} gpu_process_t;

typedef struct gpu_process_use {
    unsigned int pid;
    unsigned long long time_us; /* since 1970 */
    unsigned int processors, memory, encoder, decoder;
} gpu_process_use_t;

typedef struct gpu_fabric {
    unsigned char cluster[16];
    int status;
    unsigned int clique;
    unsigned char state; /* 0 not supported, 1 not started, 2 in progress, 3 completed */
} gpu_fabric_t;

typedef struct gpu_event {
    void *device;
    unsigned long long type, data; /* data: the Xid */
    unsigned int instance, compute_instance;
} gpu_event_t;

#endif
