/* Recorders by the environment's word. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_CORE_RECORD_H
#define EPX_CORE_RECORD_H

/* Whether records of a job of this name lie where they go by default: an ended process may have had this
 * one's number. */
int epx_record_is_taken(const char *job);

#endif
