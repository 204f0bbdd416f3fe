/* A library that is no plug-in. SPDX-License-Identifier: Apache-2.0 */
int not_a_transport(void);
int not_a_transport(void) { return 1; }
