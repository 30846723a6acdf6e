#include "client/show/shell_word.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace nsa::client {

std::string ShellWord(const std::string& path) {
  const auto plain = [](unsigned char c) {
    return absl::ascii_isalnum(c) || std::strchr("/._-+,:@%", c) != nullptr;
  };
  if (!path.empty() && std::all_of(path.begin(), path.end(), plain)) return path;
  return absl::StrCat("'", absl::StrReplaceAll(path, {{"'", "'\\''"}}), "'");
}

}  // namespace nsa::client
