// Why a file cannot be read, for messages.
#pragma once

#include <filesystem>
#include <string>

namespace nsa {

// What the system says of `error`, the errno of an open or a read of `path`; for a file without
// permission also whose it is: "Permission denied; it belongs to root with mode 0600, and this
// process runs as nsa".
std::string WhyUnreadable(const std::filesystem::path& path, int error);

}  // namespace nsa
