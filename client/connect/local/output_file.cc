#include "client/connect/local/output_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace nsa::client {

absl::Status WriteOutputFile(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  if (file << text && file.flush()) return absl::OkStatus();
  const std::string why = errno == 0 ? "" : absl::StrCat(" (", std::strerror(errno), ")");
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": cannot be written", why, "; name a file that can with -o"));
}

}  // namespace nsa::client
