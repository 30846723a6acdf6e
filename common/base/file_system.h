// What kind of file system a folder is on.
#pragma once

#include <filesystem>
#include <string_view>

namespace nsa {

// The name of the network file system with this f_type (statfs(2)), such as "NFS"; empty for any
// other. FUSE counts as none, because it cannot be seen what is behind it.
std::string_view NetworkFileSystemOf(long type);

// That of a folder; empty too if the system does not say.
std::string_view NetworkFileSystem(const std::filesystem::path& folder);

}  // namespace nsa
