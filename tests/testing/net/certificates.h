// Certificates for tests of TLS.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "client/admin/certificates.h"
#include "gtest/gtest.h"
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

namespace nsa {

#if defined(__SANITIZE_ADDRESS__)
// Looks for leaks when the last test has ended, which is the only time that AddressSanitizer does
// so then. At the end of the process it would be too late: OpenSSL has cleaned up, and a thread of
// gRPC that ends after that, which nobody can wait for, cannot give back what OpenSSL keeps for
// each thread.
class LeakCheck : public ::testing::Environment {
 public:
  void TearDown() override { __lsan_do_leak_check(); }
};
inline const ::testing::Environment* const kLeakCheck =
    ::testing::AddGlobalTestEnvironment(new LeakCheck);
#endif

// Makes NAME.crt and NAME.key (mode 0600) in `folder`, valid for two days: of the authorities ca
// and other; signed by ca, of the servers server (127.0.0.1) and elsewhere (another host's name),
// of the client `client`, and of `ended`, which was valid until a minute ago; signed by other, of
// the client `stranger`. False when one could not be made.
inline bool MakeCertificates(const std::filesystem::path& folder) {
  const absl::Time now = absl::Now();
  const client::Validity validity{now - absl::Hours(1), now + absl::Hours(48)};
  const client::Validity over{now - absl::Hours(48), now - absl::Minutes(1)};
  const auto write = [&](const std::string& name, const client::Certificate& made) {
    std::ofstream(folder / (name + ".key")) << made.key;
    std::filesystem::permissions(folder / (name + ".key"), std::filesystem::perms(0600));
    std::ofstream(folder / (name + ".crt")) << made.certificate;
    return client::Belongs(made);
  };
  const auto authority = [&](const std::string& name) {
    client::Certificate made{.key = client::NewKey().value_or("")};
    made.certificate = client::MakeAuthority(made.key, name, validity).value_or("");
    return made;
  };
  const auto leaf = [&](const client::Certificate& by, const std::string& name,
                        const std::vector<std::string>& hosts, const client::Validity& valid) {
    client::Certificate made{.key = client::NewKey().value_or("")};
    const client::CertificateRequest request{
        .key = made.key, .name = name, .hosts = hosts, .validity = valid};
    made.certificate = client::Sign(by, request).value_or("");
    return write(name, made);
  };
  const client::Certificate ca = authority("ca");
  const client::Certificate other = authority("other");
  return write("ca", ca) && write("other", other) && leaf(ca, "server", {"127.0.0.1"}, validity) &&
         leaf(ca, "client", {}, validity) && leaf(ca, "elsewhere", {"elsewhere"}, validity) &&
         leaf(ca, "ended", {"127.0.0.1"}, over) && leaf(other, "stranger", {}, validity);
}

}  // namespace nsa
