/* Lets Criterion run under ThreadSanitizer; linked into test runners of that variant only.
 *
 * Criterion keeps what its worker processes share at an address that it draws with rand_r from a wide range.
 * ThreadSanitizer uses most of that range itself and refuses the mapping. This rand_r, found before libc's,
 * draws only addresses from 0x550000000000 to 0x566fff000000, which belong to the program. The number is the
 * address, less 0x200000000000, in units of 2^24 bytes. */
#include <stdlib.h>

int rand_r(unsigned *seed)
{
    *seed = *seed * 1103515245u + 12345u;
    return 0x350000 + (int)((*seed >> 8) % 0x17000u);
}
