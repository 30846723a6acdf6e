// Writes to a disk, and their errors.
#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace nsa {

// Writes all bytes to an open file, in as many calls as it takes. False, with errno, if that fails;
// some of them may then be written.
bool WriteAll(int fd, std::string_view bytes);

// "WHAT: Permission denied". Without room, which a quota and a limit of file sizes take away like a
// full disk, ResourceExhausted: "WHAT: No space left on device; free space there, or name a place
// on another disk".
absl::Status WriteError(int error, std::string_view what);

}  // namespace nsa
