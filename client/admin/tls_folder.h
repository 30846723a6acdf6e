// A folder with an authority, the certificates that it has signed, and a token: what a coordinator
// that other machines can reach needs. A certificate NAME is NAME.crt and its key NAME.key, both of
// mode 0600; the authority is `ca`, the coordinator's certificate `coordinator`.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/admin/certificates.h"

namespace nsa::client {

struct TlsWish {
  // Names and addresses of the coordinator; empty: the name of this machine. A new certificate is
  // also for localhost and its addresses.
  std::vector<std::string> hosts;
  std::vector<std::string> agents;   // names of nodes
  std::vector<std::string> clients;  // names of people or of their machines
  int days = 825;
};

struct TlsEntry {
  std::string name;  // "lab" for lab.crt and lab.key
  CertificateFacts facts;
  bool made = false;  // false: it was there before
};

// Makes what is missing, the folder and its file `token` too, and keeps what is there. What root
// makes belongs to the folder's owner. The authority is first in the result, the coordinator
// second.
//
// InvalidArgument for names that cannot be file names or hosts; FailedPrecondition if the folder
// has something that does not fit: an authority without its key, a key of another certificate, or a
// coordinator's certificate without one of `hosts`.
absl::StatusOr<std::vector<TlsEntry>> InitTls(const std::filesystem::path& folder,
                                              const TlsWish& wish, absl::Time now);

// Signs every certificate of the folder's authority again, for `days` from now; keys stay, and so
// do owner, group and mode of each file. NotFound without an authority, FailedPrecondition if the
// authority's own certificate has ended.
absl::StatusOr<std::vector<TlsEntry>> RenewTls(const std::filesystem::path& folder, int days,
                                               absl::Time now);

}  // namespace nsa::client
