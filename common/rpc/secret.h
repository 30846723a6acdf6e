// Secrets: tokens of people, join tokens and secrets of agents. To recognise one, a program
// stores only its SHA-256. A secret is 32 random bytes, so no salt and no slow hash is needed.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace nsa {

// 32 random bytes as 64 hexadecimal digits. Internal if the system has no random numbers.
absl::StatusOr<std::string> NewSecret();

// SHA-256 of a secret: 32 bytes.
std::string Sha256(std::string_view secret);

// The first line, without blanks at its ends, of a file that only its owner can read. `field` is
// the setting that names the file, for messages. NotFound if it cannot be read, PermissionDenied if
// others have a right to it, InvalidArgument if it is larger than 4 KiB or its first line is
// shorter than 16 bytes.
absl::StatusOr<std::string> ReadSecretFile(std::string_view field,
                                           const std::filesystem::path& path);

// Writes a new secret to `path`, mode 0600, and returns true. Returns false and changes nothing if
// `path` exists. A reader sees no file or all of it.
absl::StatusOr<bool> MakeSecretFile(std::string_view field, const std::filesystem::path& path);

}  // namespace nsa
