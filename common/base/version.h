// Version of this build.
#pragma once

#include <string>
#include <string_view>

namespace nsa {

// "0.2.0" of a release, else "0.2.0~1310.g4bc116db1a2c"; deploy/version.sh describes it.
extern const char kVersion[];
// The commit, "4bc116db1a2c"; "unknown" if built outside a checkout.
extern const char kRevision[];

// Both, without repeating the commit: "0.2.0 (4bc116db1a2c)", or the version that contains it.
std::string FullVersion(std::string_view version = kVersion, std::string_view revision = kRevision);

}  // namespace nsa
