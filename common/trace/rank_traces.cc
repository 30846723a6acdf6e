#include "common/trace/rank_traces.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/base/write.h"

namespace nsa {

absl::StatusOr<Fd> NamelessFile(const std::string& folder) {
  Fd fd(open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (fd.valid() || (errno != EOPNOTSUPP && errno != EISDIR)) {
    if (fd.valid()) return fd;
    return WriteError(errno, absl::StrCat(folder, ": a temporary file"));
  }
  // A file system that cannot make files without names, for example NFS.
  std::string path = absl::StrCat(folder, "/nsa-trace-XXXXXX");
  fd = Fd(mkostemp(path.data(), O_CLOEXEC));
  if (!fd.valid()) return WriteError(errno, absl::StrCat(folder, ": a temporary file"));
  unlink(path.c_str());
  return fd;
}

absl::Status AppendTo(const Fd& file, std::string_view data) {
  return WriteAll(file.get(), data) ? absl::OkStatus()
                                    : WriteError(errno, "TMPDIR: a temporary file");
}

absl::Status RankTraces::Take(const v1::ProfileJobResponse& part) {
  RankTrace& trace = ranks_[part.rank()];
  trace.node = part.node();
  if (!part.error().empty()) {
    trace.error = part.error();
    return absl::OkStatus();
  }
  const auto bytes = static_cast<int64_t>(part.data().size());
  if (part.offset() != trace.received || part.offset() + bytes > part.size()) {
    return absl::DataLossError(
        absl::StrFormat("profile: rank %d: a part at %d (%d of %d bytes are here); try again",
                        part.rank(), part.offset(), trace.received, part.size()));
  }
  if (bytes > most_bytes_ - bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("profile: the traces of the ranks have more than %d bytes together; record "
                        "fewer steps",
                        most_bytes_));
  }
  if (!trace.file.valid()) {
    NSA_ASSIGN_OR_RETURN(trace.file, NamelessFile(folder_));
  }
  NSA_RETURN_IF_ERROR(AppendTo(trace.file, part.data()));
  trace.size = part.size();
  trace.received += bytes;
  bytes_ += bytes;
  return absl::OkStatus();
}

std::vector<std::string> RankTraces::Problems() const {
  std::vector<std::string> problems;
  for (const auto& [rank, trace] : ranks_) {
    if (trace.complete()) continue;
    const std::string why = trace.error.empty() ? "its trace is not whole" : trace.error;
    const std::string name = absl::StrCat("rank ", rank);
    problems.push_back(absl::StrContains(why, name) ? why : absl::StrCat(name, ": ", why));
  }
  return problems;
}

}  // namespace nsa
