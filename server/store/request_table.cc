#include "server/store/request_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace nsa::server {

absl::Status RequestTable::AddTimes() {
  NSA_ASSIGN_OR_RETURN(
      const int64_t has,
      database_.QueryInt(
          "SELECT COUNT(*) FROM pragma_table_info('requests') WHERE name = 'unix_seconds'"));
  // A store without the table is damaged, which is found later.
  NSA_ASSIGN_OR_RETURN(const int64_t table,
                       database_.QueryInt("SELECT COUNT(*) FROM pragma_table_info('requests')"));
  if (has > 0 || table == 0) return absl::OkStatus();
  NSA_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(&database_));
  NSA_RETURN_IF_ERROR(database_.Execute(
      absl::StrCat("ALTER TABLE requests ADD COLUMN unix_seconds INTEGER NOT NULL DEFAULT 0; "
                   "UPDATE requests SET unix_seconds = ",
                   absl::ToUnixSeconds(clock_.Wall()),
                   "; CREATE INDEX requests_by_time ON requests(unix_seconds);")));
  return transaction.Commit();
}

absl::StatusOr<std::string> RequestTable::Find(const std::string& id,
                                               const std::string& fingerprint) const {
  if (id.empty()) return "";
  NSA_ASSIGN_OR_RETURN(Statement row,
                       database_.Prepare("SELECT fingerprint, job FROM requests WHERE id = ?"));
  NSA_ASSIGN_OR_RETURN(const bool found, row.Bind(1, id).Step());
  if (!found) return "";
  if (row.Text(0) == fingerprint) return row.Text(1);
  return absl::AlreadyExistsError(absl::StrCat("request_id: ", id,
                                               " (that of another request, about job ", row.Text(1),
                                               "); choose a new one"));
}

absl::Status RequestTable::Write(const std::string& id, const std::string& fingerprint,
                                 const std::string& job_id) {
  if (id.empty()) return absl::OkStatus();
  NSA_ASSIGN_OR_RETURN(
      Statement row,
      database_.Prepare(
          "INSERT INTO requests(id, fingerprint, job, unix_seconds) VALUES(?, ?, ?, ?)"));
  row.Bind(1, id).Bind(2, fingerprint).Bind(3, job_id);
  return row.Bind(4, absl::ToUnixSeconds(clock_.Wall())).Run();
}

absl::StatusOr<int64_t> RequestTable::Forget(absl::Time now, int rows) {
  NSA_ASSIGN_OR_RETURN(const int64_t all, database_.QueryInt("SELECT COUNT(*) FROM requests"));
  NSA_ASSIGN_OR_RETURN(
      Statement old,
      database_.Prepare("DELETE FROM requests WHERE id IN (SELECT id FROM requests INDEXED BY "
                        "requests_by_time WHERE unix_seconds < ? ORDER BY unix_seconds LIMIT ?)"));
  NSA_RETURN_IF_ERROR(old.Bind(1, absl::ToUnixSeconds(now - kKept)).Bind(2, rows).Run());
  const int64_t gone = database_.changes();
  const int64_t more = std::min(all - gone - kMost, rows - gone);
  if (more <= 0) return gone;
  NSA_ASSIGN_OR_RETURN(
      Statement oldest,
      database_.Prepare("DELETE FROM requests WHERE id IN (SELECT id FROM requests INDEXED BY "
                        "requests_by_time ORDER BY unix_seconds LIMIT ?)"));
  NSA_RETURN_IF_ERROR(oldest.Bind(1, more).Run());
  return gone + database_.changes();
}

}  // namespace nsa::server
