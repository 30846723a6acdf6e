#include "worker/agent/program_hash.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <memory>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/base/fd.h"

namespace nsa::agent {
namespace {

constexpr size_t kBlock = size_t{1} << 20;
constexpr int64_t kLargestProgram = int64_t{4} << 30;

bool SameFile(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino && a.st_size == b.st_size &&
         a.st_mtim.tv_sec == b.st_mtim.tv_sec && a.st_mtim.tv_nsec == b.st_mtim.tv_nsec &&
         a.st_ctim.tv_sec == b.st_ctim.tv_sec && a.st_ctim.tv_nsec == b.st_ctim.tv_nsec;
}

// Empty if the file cannot be read to its end, or grows beyond the limit meanwhile.
std::string HashOf(int file) {
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                              XXH3_freeState);
  XXH3_64bits_reset(state.get());
  std::vector<char> block(kBlock);
  int64_t done = 0;
  while (true) {
    const ssize_t got = read(file, block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return "";
    if (got == 0) return absl::StrFormat("%016x", XXH3_64bits_digest(state.get()));
    done += got;
    if (done > kLargestProgram) return "";
    XXH3_64bits_update(state.get(), block.data(), static_cast<size_t>(got));
  }
}

}  // namespace

const std::string& ProgramHash::Read() {
  struct stat now = {};
  if (stat(program_.c_str(), &now) != 0 || !S_ISREG(now.st_mode) || now.st_size > kLargestProgram) {
    seen_.reset();
    hash_.clear();
    return hash_;
  }
  if (seen_.has_value() && SameFile(*seen_, now)) return hash_;
  const Fd file(open(program_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  hash_ = file.valid() ? HashOf(file.get()) : "";
  // As it was before it was read: a file that changes meanwhile is read again, as is one that could
  // not be read.
  seen_ = hash_.empty() ? std::nullopt : std::optional(now);
  return hash_;
}

}  // namespace nsa::agent
