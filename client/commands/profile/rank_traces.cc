#include "client/commands/profile/rank_traces.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"

namespace nsa::client {
namespace {

absl::StatusOr<Fd> NamelessFile() {
  const char* const folder = std::getenv("TMPDIR");
  std::string path = absl::StrCat(folder == nullptr || *folder == '\0' ? "/tmp" : folder,
                                  "/nsactl-profile-XXXXXX");
  Fd fd(mkostemp(path.data(), O_CLOEXEC));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, absl::StrCat("TMPDIR: ", path));
  unlink(path.c_str());
  return fd;
}

absl::Status Append(int fd, std::string_view data) {
  while (!data.empty()) {
    const ssize_t n = write(fd, data.data(), data.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return absl::ErrnoToStatus(errno, "TMPDIR: a temporary file");
    data.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RankTraces::Take(const v1::ProfileJobResponse& part) {
  RankTrace& trace = ranks_[part.rank()];
  trace.node = part.node();
  if (!part.error().empty()) {
    trace.error = part.error();
    return absl::OkStatus();
  }
  if (part.offset() != trace.received ||
      part.offset() + static_cast<int64_t>(part.data().size()) > part.size()) {
    return absl::DataLossError(
        absl::StrFormat("profile: rank %d: a part at %d (%d of %d bytes are here); try again",
                        part.rank(), part.offset(), trace.received, part.size()));
  }
  if (!trace.file.valid()) {
    NSA_ASSIGN_OR_RETURN(trace.file, NamelessFile());
  }
  NSA_RETURN_IF_ERROR(Append(trace.file.get(), part.data()));
  trace.size = part.size();
  trace.received += static_cast<int64_t>(part.data().size());
  return absl::OkStatus();
}

}  // namespace nsa::client
