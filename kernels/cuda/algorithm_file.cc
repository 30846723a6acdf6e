#include "kernels/cuda/algorithm_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace nsa::cuda {
namespace {

absl::Status Failure(const std::string& path, const char* what) {
  return absl::UnavailableError(absl::StrCat(path, ": ", what, ": ", std::strerror(errno)));
}

}  // namespace

std::string DefaultAlgorithmFolder() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/') {
    return absl::StrCat(cache, "/nsa");
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/') {
    return absl::StrCat(home, "/.cache/nsa");
  }
  return "";
}

std::string FormatAlgorithm(const Algorithm& algorithm) {
  return absl::StrJoin(algorithm, " ", [](std::string* text, uint64_t word) {
    absl::StrAppend(text, absl::Hex(word));
  });
}

std::optional<Algorithm> ParseAlgorithm(std::string_view text) {
  std::istringstream words{std::string(text)};
  Algorithm algorithm{};
  words >> std::hex;
  for (uint64_t& word : algorithm) words >> word;
  if (!words || !(words >> std::ws).eof()) return std::nullopt;
  return algorithm;
}

AlgorithmFile::AlgorithmFile(const std::string& folder, const std::string& gpu,
                             size_t library_version) {
  if (folder.empty()) return;
  std::string name = gpu;
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  path_ = absl::StrCat(folder, "/cublaslt-", name, "-", library_version, ".txt");
}

AlgorithmFile::~AlgorithmFile() { Unlock(); }

absl::Status AlgorithmFile::Lock() {
  if (path_.empty()) return absl::UnavailableError("no folder for cuBLASLt's algorithms");
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), error);
  lock_ = open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (lock_ < 0) return Failure(path_, "open");
  while (flock(lock_, LOCK_EX) != 0) {
    if (errno == EINTR) continue;
    const absl::Status status = Failure(path_, "lock");
    Unlock();
    return status;
  }
  return absl::OkStatus();
}

void AlgorithmFile::Unlock() {
  if (lock_ >= 0) close(std::exchange(lock_, -1));  // closing the file releases the lock
}

void AlgorithmFile::ReadNewLines() {
  std::ifstream file(path_, std::ios::binary);
  if (!file.seekg(read_)) return;
  std::string line;
  while (std::getline(file, line) && !file.eof()) {  // skip a last line without its newline
    read_ += static_cast<int64_t>(line.size()) + 1;
    const size_t blank = line.find(' ');
    if (blank == std::string::npos) continue;
    const std::optional<Algorithm> algorithm =
        ParseAlgorithm(std::string_view(line).substr(blank + 1));
    // Keeps the first line of a shape.
    if (algorithm.has_value()) known_.emplace(line.substr(0, blank), *algorithm);
  }
}

std::optional<Algorithm> AlgorithmFile::Find(const std::string& key) {
  if (path_.empty()) return std::nullopt;
  ReadNewLines();
  const auto found = known_.find(key);
  return found == known_.end() ? std::nullopt : std::optional(found->second);
}

absl::Status AlgorithmFile::Add(const std::string& key, const Algorithm& algorithm) {
  const std::string line = absl::StrCat(key, " ", FormatAlgorithm(algorithm), "\n");
  // One write for the whole line, so that a reader sees all of it or nothing.
  if (write(lock_, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    return Failure(path_, "write");
  }
  return absl::OkStatus();
}

}  // namespace nsa::cuda
