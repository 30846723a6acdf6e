#include "client/connect/local/output_file.h"

#include <fstream>

#include "absl/strings/str_cat.h"

namespace nsa::client {

absl::Status WriteOutputFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  if (file << text && file.flush()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": cannot be written; name a file that can with -o"));
}

}  // namespace nsa::client
