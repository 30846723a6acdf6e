#include "client/admin/tls_folder.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <functional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/fd.h"
#include "common/base/host_name.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/base/write.h"
#include "common/rpc/secret.h"
#include "common/run/atomic_file.h"

namespace nsa::client {
namespace {

namespace fs = std::filesystem;

constexpr char kAuthority[] = "ca";
constexpr char kCoordinator[] = "coordinator";
constexpr size_t kLongestNodeName = 64;
constexpr int kAuthorityDays = 3650;
// The clocks of two machines may differ.
constexpr absl::Duration kBackdated = absl::Hours(1);

Validity For(int days, absl::Time now) { return {now - kBackdated, now + absl::Hours(24) * days}; }

fs::path CertificateFile(const fs::path& folder, const std::string& name) {
  return folder / (name + ".crt");
}
fs::path KeyFile(const fs::path& folder, const std::string& name) {
  return folder / (name + ".key");
}

bool Exists(const fs::path& path) {
  std::error_code error;
  return fs::symlink_status(path, error).type() != fs::file_type::not_found;
}

// What root makes in a folder of the coordinator's user must be readable for that user.
bool GiveToOwner(const fs::path& folder, int file) {
  struct stat info {};
  return geteuid() != 0 ||
         (stat(folder.c_str(), &info) == 0 && fchown(file, info.st_uid, info.st_gid) == 0);
}

// Never replaces a file.
absl::Status WriteNew(const fs::path& path, const std::string& content) {
  Fd file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  absl::Status status = absl::OkStatus();
  if (!file.valid() || !WriteAll(file.get(), content) ||
      !GiveToOwner(path.parent_path(), file.get()) || fsync(file.get()) != 0) {
    status = WriteError(errno, absl::StrCat(path.string(), " cannot be written"));
  }
  if (!file.valid()) return status;
  if (status.ok()) status = file.Close();
  if (!status.ok()) unlink(path.c_str());
  return status;
}

absl::StatusOr<std::string> ReadPem(const fs::path& path) {
  std::error_code error;
  const auto bytes = static_cast<int64_t>(fs::file_size(path, error));
  if (!error && bytes > limits::kCertificateBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path.string(), ": ", bytes, " bytes (",
                                                   limits::kCertificateBytes,
                                                   "); this is no PEM file"));
  }
  return ReadWholeFile(path);
}

absl::Status CheckNames(const TlsWish& wish) {
  std::set<std::string> taken = {kAuthority, kCoordinator};
  for (const auto* names : {&wish.agents, &wish.clients}) {
    for (const std::string& name : *names) {
      if (!limits::IsPlainName(name, kLongestNodeName)) {
        return absl::InvalidArgumentError(
            absl::StrCat("name: '", name, "' (1 to ", kLongestNodeName,
                         " letters, digits and -_., not beginning with - or .); choose another"));
      }
      if (!taken.insert(name).second) {
        return absl::InvalidArgumentError(
            absl::StrCat("name: '", name,
                         "' is used twice, or is one of ca and coordinator; "
                         "choose another"));
      }
    }
  }
  return absl::OkStatus();
}

// Makes a certificate for a key.
using Issue = std::function<absl::StatusOr<std::string>(const std::string& key)>;

// The certificate of the folder with this name, and its key if that is there. Makes what is
// missing; a certificate whose key is elsewhere is kept.
absl::StatusOr<Certificate> Ensure(const fs::path& folder, const std::string& name,
                                   const Issue& issue, TlsEntry* entry) {
  const fs::path certificate_file = CertificateFile(folder, name);
  const fs::path key_file = KeyFile(folder, name);
  const bool known = Exists(certificate_file);
  Certificate pair;
  if (Exists(key_file)) {
    NSA_ASSIGN_OR_RETURN(pair.key, ReadPem(key_file));
  } else if (!known) {
    NSA_ASSIGN_OR_RETURN(pair.key, NewKey());
    NSA_RETURN_IF_ERROR(WriteNew(key_file, pair.key));
  }
  if (known) {
    NSA_ASSIGN_OR_RETURN(pair.certificate, ReadPem(certificate_file));
    if (!pair.key.empty() && !Belongs(pair)) {
      return absl::FailedPreconditionError(absl::StrCat(key_file.string(), ": is not the key of ",
                                                        certificate_file.string(),
                                                        "; move one of them away"));
    }
  } else {
    NSA_ASSIGN_OR_RETURN(pair.certificate, issue(pair.key));
    NSA_RETURN_IF_ERROR(WriteNew(certificate_file, pair.certificate));
  }
  const absl::StatusOr<CertificateFacts> facts = ReadCertificate(pair.certificate);
  if (!facts.ok()) return Annotate(facts.status(), certificate_file.string());
  *entry = {.name = name, .facts = *facts, .made = !known};
  return pair;
}

// The names for a new certificate of the coordinator.
std::vector<std::string> HostsFor(const TlsWish& wish) {
  std::vector<std::string> hosts = wish.hosts;
  if (const std::string own = HostName(); hosts.empty() && !own.empty()) hosts.push_back(own);
  // So that the coordinator's own machine can use the same address and certificate.
  for (const char* own : {"localhost", "127.0.0.1", "::1"}) {
    if (std::ranges::find(hosts, own) == hosts.end()) hosts.emplace_back(own);
  }
  return hosts;
}

absl::Status CheckHosts(const fs::path& folder, const CertificateFacts& coordinator,
                        const std::vector<std::string>& hosts) {
  for (const std::string& host : hosts) {
    if (std::ranges::find(coordinator.hosts, host) != coordinator.hosts.end()) continue;
    const std::string file = CertificateFile(folder, kCoordinator).string();
    return absl::FailedPreconditionError(
        absl::StrCat(file, ": is not for ", host, " (", absl::StrJoin(coordinator.hosts, ", "),
                     "); move it away, and one is made for the same key"));
  }
  return absl::OkStatus();
}

// The authority of the folder, which must be able to sign.
absl::Status CheckAuthority(const fs::path& folder, const Certificate& authority,
                            const CertificateFacts& facts, absl::Time now) {
  const std::string file = CertificateFile(folder, kAuthority).string();
  if (authority.key.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(file, ": its key ca.key is not in the folder; put it there to sign with it"));
  }
  if (!facts.authority) {
    return absl::FailedPreconditionError(
        absl::StrCat(file, ": is not the certificate of an authority; choose another folder"));
  }
  if (facts.until > now) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      file, ": ended on ", absl::FormatTime("%Y-%m-%d", facts.until, absl::UTCTimeZone()),
      "; make another authority in another folder"));
}

// The hosts as a certificate that is read names them.
TlsWish Canonical(TlsWish wish) {
  for (std::string& host : wish.hosts) {
    in6_addr address{};
    std::array<char, INET6_ADDRSTRLEN> text{};
    if (inet_pton(AF_INET6, host.c_str(), &address) != 1) continue;
    host = inet_ntop(AF_INET6, &address, text.data(), text.size());
  }
  return wish;
}

}  // namespace

absl::StatusOr<std::vector<TlsEntry>> InitTls(const fs::path& folder, const TlsWish& asked,
                                              absl::Time now) {
  const TlsWish wish = Canonical(asked);
  NSA_RETURN_IF_ERROR(CheckNames(wish));
  std::error_code error;
  if (fs::create_directories(folder, error)) {
    fs::permissions(folder, fs::perms::owner_all, error);
  }
  if (error || !fs::is_directory(folder, error)) {
    return absl::FailedPreconditionError(
        absl::StrCat(folder.string(), ": cannot be made a folder; choose another"));
  }
  std::vector<TlsEntry> entries(1);
  NSA_ASSIGN_OR_RETURN(const Certificate authority,
                       Ensure(
                           folder, kAuthority,
                           [&](const std::string& key) {
                             return MakeAuthority(key, "nsa authority", For(kAuthorityDays, now));
                           },
                           &entries[0]));
  NSA_RETURN_IF_ERROR(CheckAuthority(folder, authority, entries[0].facts, now));
  const auto ensure = [&](const std::string& name, const std::string& common_name,
                          const std::vector<std::string>& hosts) {
    return Ensure(
               folder, name,
               [&](const std::string& key) {
                 return Sign(authority, {.key = key,
                                         .name = common_name,
                                         .hosts = hosts,
                                         .validity = For(wish.days, now)});
               },
               &entries.emplace_back())
        .status();
  };
  NSA_RETURN_IF_ERROR(ensure(kCoordinator, "nsa coordinator", HostsFor(wish)));
  NSA_RETURN_IF_ERROR(CheckHosts(folder, entries.back().facts, wish.hosts));
  for (const auto* names : {&wish.agents, &wish.clients}) {
    for (const std::string& name : *names) NSA_RETURN_IF_ERROR(ensure(name, name, {}));
  }
  if (!Exists(folder / "token")) {
    NSA_ASSIGN_OR_RETURN(const std::string secret, NewSecret());
    NSA_RETURN_IF_ERROR(WriteNew(folder / "token", secret + "\n"));
  }
  return entries;
}

absl::StatusOr<std::vector<TlsEntry>> RenewTls(const fs::path& folder, int days, absl::Time now) {
  std::vector<TlsEntry> entries(1);
  Certificate authority;
  if (Exists(KeyFile(folder, kAuthority))) {
    NSA_ASSIGN_OR_RETURN(authority.key, ReadPem(KeyFile(folder, kAuthority)));
  }
  NSA_ASSIGN_OR_RETURN(authority.certificate, ReadPem(CertificateFile(folder, kAuthority)));
  NSA_ASSIGN_OR_RETURN(entries[0].facts, ReadCertificate(authority.certificate));
  entries[0].name = kAuthority;
  NSA_RETURN_IF_ERROR(CheckAuthority(folder, authority, entries[0].facts, now));
  std::set<fs::path> files;
  std::error_code error;
  for (const auto& file : fs::directory_iterator(folder, error)) {
    if (file.path().extension() == ".crt" && file.path().stem() != kAuthority) {
      files.insert(file.path());
    }
  }
  // All are signed before the first is replaced, so that a file which is refused changes nothing.
  std::vector<std::pair<fs::path, std::string>> renewed;
  for (const fs::path& file : files) {
    NSA_ASSIGN_OR_RETURN(const std::string before, ReadPem(file));
    const auto after = Renew(authority, before, For(days, now));
    if (!after.ok()) return Annotate(after.status(), file.string());
    NSA_ASSIGN_OR_RETURN(const CertificateFacts facts, ReadCertificate(*after));
    entries.push_back({.name = file.stem().string(), .facts = facts, .made = true});
    renewed.emplace_back(file, *after);
  }
  for (const auto& [file, certificate] : renewed) {
    NSA_RETURN_IF_ERROR(ReplaceFileAtomically(file, certificate));
  }
  return entries;
}

}  // namespace nsa::client
