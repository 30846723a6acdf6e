// Version of this build.
#pragma once

namespace nsa {

extern const char kVersion[];   // "0.1.0"
extern const char kRevision[];  // Git commit; "unknown" if built outside a checkout

}  // namespace nsa
