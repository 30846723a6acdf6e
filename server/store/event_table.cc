#include "server/store/event_table.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "server/store/sealed.h"

namespace nsa::server {

absl::Status EventTable::Write(int64_t number, const v1::Job& job,
                               std::vector<v1::JobEvent> events) {
  if (events.empty()) return absl::OkStatus();
  NSA_ASSIGN_OR_RETURN(Statement row,
                       database_.Prepare("INSERT INTO events(job, body) VALUES(?, ?)"));
  for (v1::JobEvent& event : events) {
    event.set_job_id(job.id());
    if (event.unix_nanos() == 0) event.set_unix_nanos(absl::ToUnixNanos(clock_.Wall()));
    event.set_state(job.state());
    if (event.generation() == 0) event.set_generation(job.generation());
    NSA_RETURN_IF_ERROR(row.Bind(1, number).BindBlob(2, Seal(event)).Run());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<v1::JobEvent>> EventTable::Read(
    int64_t number, const std::map<std::string, int64_t>& but, int64_t after_sequence, int limit,
    size_t most_bytes) const {
  std::string sql = "SELECT sequence, body FROM events WHERE sequence > ?";
  if (number != 0) {
    absl::StrAppend(&sql, " AND job = ", number);
  } else if (!but.empty()) {
    const auto add = [](std::string* out, const auto& job) { absl::StrAppend(out, job.second); };
    absl::StrAppend(&sql, " AND job NOT IN (", absl::StrJoin(but, ",", add), ")");
  }
  NSA_ASSIGN_OR_RETURN(Statement rows,
                       database_.Prepare(absl::StrCat(sql, " ORDER BY sequence LIMIT ?")));
  rows.Bind(1, after_sequence).Bind(2, int64_t{limit});
  std::vector<v1::JobEvent> events;
  size_t bytes = 0;
  while (true) {
    NSA_ASSIGN_OR_RETURN(const bool more, rows.Step());
    if (!more || bytes > most_bytes) return events;
    const std::string body = rows.Blob(1);
    bytes += body.size();
    v1::JobEvent& event = events.emplace_back();
    NSA_RETURN_IF_ERROR(Annotate(Unseal(body, &event), absl::StrCat("event ", rows.Int(0))));
    event.set_sequence(rows.Int(0));
  }
}

absl::StatusOr<int64_t> EventTable::Last() const {
  return database_.QueryInt("SELECT COALESCE(MAX(sequence), 0) FROM events");
}

}  // namespace nsa::server
