// Small files that a setting names: tokens, keys, certificates. Errors name the setting, the file
// and what to do.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nsa {

struct NamedFile {
  std::string text;  // the first most + 1 bytes if the file is larger than `most`
  struct stat info;
};

// Reads the file; `field` is the setting. NotFound with the cause if it cannot be read.
absl::StatusOr<NamedFile> ReadNamedFile(std::string_view field, const std::filesystem::path& path,
                                        size_t most);

// PermissionDenied if others than the owner of the file have a right to it. `what` it is ("a
// secret"), and what to do if others may have seen it ("replace its content"), are for the message.
absl::Status CheckIsPrivate(std::string_view field, const std::filesystem::path& path,
                            const struct stat& info, std::string_view what, std::string_view then);

}  // namespace nsa
