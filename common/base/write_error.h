// Errors of writes to a disk.
#pragma once

#include <cerrno>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace nsa {

// "WHAT: Permission denied". Without room, which a quota and a limit of file sizes take away like a
// full disk, ResourceExhausted: "WHAT: No space left on device; free space there, or name a place
// on another disk".
inline absl::Status WriteError(int error, std::string_view what) {
  const absl::Status status =
      absl::ErrnoToStatus(error, absl::string_view(what.data(), what.size()));
  if (error != ENOSPC && error != EDQUOT && error != EFBIG) return status;
  return absl::ResourceExhaustedError(
      absl::StrCat(status.message(), "; free space there, or name a place on another disk"));
}

}  // namespace nsa
