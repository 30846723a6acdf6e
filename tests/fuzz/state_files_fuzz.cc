// Any bytes as a small file that a daemon finds when it starts: the audit log, the file of tokens,
// a worker's status page. Each is refused with its name, or read.
#include "common/run/status_page.h"
#include "server/store/access_store.h"
#include "server/store/audit/audit_log.h"
#include "tests/fuzz/fuzz.h"
#include "tests/testing/fakes/fake_clock.h"

using nsa::fuzz::Input;
using nsa::fuzz::Require;
using nsa::fuzz::RequireRefusal;

namespace {

nsa::FakeClock kClock;

// Whatever the file had, one more entry can be added and is the last one.
void ReadAudit(std::string_view older, std::string_view bytes) {
  nsa::fuzz::File("audit.log.1", older);
  nsa::fuzz::File("audit.log", bytes);
  const auto log = nsa::server::AuditLog::Open(nsa::fuzz::Folder(), kClock, 1 << 20);
  RequireRefusal(log.status());
  if (!log.ok()) return;
  const int64_t before = (*log)->last_sequence();
  nsa::v1::AuditEntry entry;
  entry.set_who("ada");
  entry.set_what("StopJob");
  entry.set_subject(std::string(bytes.substr(0, 300)));
  (*log)->Add(entry);
  const auto entries = (*log)->Read(before, 10);
  RequireRefusal(entries.status());
  Require(entries.ok() && !entries->empty() && entries->back().who() == "ada",
          "an entry is lost in an audit log");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  switch (input.Byte() % 3) {
    case 0: {
      const std::string_view older = input.Text();
      ReadAudit(older, input.Rest());
      break;
    }
    case 1: {
      nsa::fuzz::File("access", input.Rest());
      const auto access = nsa::server::AccessStore::Open(nsa::fuzz::Folder(), kClock);
      RequireRefusal(access.status());
      if (access.ok()) (*access)->List("", 1'000);
      break;
    }
    default: {
      const auto status = nsa::ReadStatusPage(nsa::fuzz::File("status", input.Rest()));
      RequireRefusal(status.status());
      if (status.ok()) Require(status->ToString(0).size() < 4 << 10, "a status of many kilobytes");
    }
  }
  return 0;
}
