// A hash of a program file: ranks of one job run on machines that have the same program.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <optional>
#include <string>
#include <utility>

namespace nsa::agent {

// Reads the file when it is asked for the first time and when the file is another one than the last
// time (inode, size or time of change), which costs a tenth of a second for 500 MB in the page
// cache. Otherwise it costs one stat(). One thread at a time.
class ProgramHash {
 public:
  explicit ProgramHash(std::filesystem::path program) : program_(std::move(program)) {}

  // XXH3 (64 bits) of the content as 16 hexadecimal digits. Empty if there is no such file, if it
  // cannot be read, or if it is larger than 4 GiB.
  const std::string& Read();

 private:
  const std::filesystem::path program_;
  std::optional<struct stat> seen_;  // the file that hash_ is of
  std::string hash_;
};

}  // namespace nsa::agent
