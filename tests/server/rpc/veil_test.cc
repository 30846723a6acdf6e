// What a submitter, and the agent of another machine, learn of others' jobs.
#include <functional>
#include <memory>
#include <tuple>

#include "absl/strings/str_replace.h"
#include "common/rpc/secret.h"
#include "google/protobuf/message.h"
#include "tests/server/rpc/raw_call.h"
#include "tests/server/server_fixture.h"
#include "tests/testing/within.h"

namespace nsa::server {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class VeilTest : public ServerTest {
 protected:
  VeilTest() : tcp_(v1::CoordinatorService::NewStub(*OpenChannel(server_->listen_address(), {}))) {
    for (std::string* name : {&ada_, &bob_}) {
      v1::CreateTokenRequest request;
      request.set_role(v1::ROLE_SUBMITTER);
      request.set_name(name == &ada_ ? "ada" : "bob");
      const auto made = Call<v1::CreateTokenResponse>(&v1::CoordinatorService::Stub::CreateToken,
                                                      people_.get(), request);
      EXPECT_OK(made);
      *name = made->secret();
    }
  }

  template <typename Response, typename Method, typename Request>
  absl::StatusOr<Response> As(const std::string& token, Method method, const Request& request) {
    const auto context = MakeContext(kTimeout, token);
    Response response;
    const grpc::Status status = ((*tcp_).*method)(context.get(), request, &response);
    if (!status.ok()) return FromGrpc(status);
    return response;
  }

  absl::StatusOr<std::string> SubmitAs(const std::string& token, const v1::JobSpec& spec,
                                       const std::string& request_id = "") {
    v1::SubmitJobRequest request;
    *request.mutable_spec() = spec;
    request.set_request_id(request_id);
    const auto response =
        As<v1::SubmitJobResponse>(token, &v1::CoordinatorService::Stub::SubmitJob, request);
    if (!response.ok()) return response.status();
    return response->job().id();
  }

  absl::StatusOr<std::string> DeleteAs(const std::string& token, const std::string& job,
                                       const std::string& request_id) {
    v1::DeleteJobRequest request;
    request.set_job(job);
    request.set_request_id(request_id);
    const auto response =
        As<v1::DeleteJobResponse>(token, &v1::CoordinatorService::Stub::DeleteJob, request);
    if (!response.ok()) return response.status();
    return response->job_id();
  }

  absl::Status StopAs(const std::string& token, const std::string& job) {
    v1::StopJobRequest request;
    request.set_job(job);
    request.mutable_stop()->set_mode(v1::STOP_MODE_NOW);
    return As<v1::StopJobResponse>(token, &v1::CoordinatorService::Stub::StopJob, request).status();
  }

  std::vector<std::string> JobsOnNodesSeenBy(const std::string& token) {
    const auto nodes = As<v1::ListNodesResponse>(token, &v1::CoordinatorService::Stub::ListNodes,
                                                 v1::ListNodesRequest());
    EXPECT_OK(nodes);
    std::vector<std::string> ids;
    for (const v1::Node& node : nodes->nodes()) {
      ids.insert(ids.end(), node.job_ids().begin(), node.job_ids().end());
    }
    return ids;
  }

  const std::unique_ptr<v1::CoordinatorService::Stub> tcp_;
  std::string ada_;
  std::string bob_;
};

TEST_F(VeilTest, TheListOfMachinesNamesOwnJobsOnly) {
  FakeAgent agent("a", 1, Wire());
  const auto id = SubmitAs(ada_, Spec("one"));
  ASSERT_OK(id);
  ASSERT_TRUE(Within(absl::Minutes(1), [&] {
    EXPECT_OK(agent.Beat());
    return Get(*id).state() == Job::STATE_RUNNING;
  }));
  EXPECT_THAT(JobsOnNodesSeenBy(ada_), ElementsAre(*id));
  EXPECT_THAT(JobsOnNodesSeenBy(bob_), IsEmpty());
  EXPECT_THAT(JobsOnNodesSeenBy(Token()), ElementsAre(*id)) << "an operator sees all";
}

TEST_F(VeilTest, ARefusalDoesNotNameAnothersJob) {
  const auto id = SubmitAs(ada_, Spec("one"), "request-of-ada");
  ASSERT_OK(id);
  const auto taken = SubmitAs(bob_, Spec("one"));
  EXPECT_THAT(taken.status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       ::testing::AllOf(HasSubstr("choose another out_dir"), Not(HasSubstr(*id)))));
  // Preflight finds whose folder it is once the job has run there.
  std::filesystem::create_directories(folder_ / "out/left");
  std::ofstream(folder_ / "out/left/owner.json") << R"({"job_id": ")" << *id << R"("})";
  const auto left = SubmitAs(bob_, Spec("left"));
  EXPECT_THAT(left.status(), StatusIs(absl::StatusCode::kInvalidArgument,
                                      ::testing::AllOf(HasSubstr("belongs to job (another's)"),
                                                       Not(HasSubstr(*id)))));
  const auto repeated = SubmitAs(bob_, Spec("two"), "request-of-ada");
  EXPECT_THAT(repeated.status(), StatusIs(absl::StatusCode::kAlreadyExists, Not(HasSubstr(*id))));
  const auto deleted = DeleteAs(bob_, "two", "request-of-ada");
  EXPECT_THAT(deleted.status(), StatusIs(absl::StatusCode::kAlreadyExists, Not(HasSubstr(*id))));
  // Its owner sees which job it is.
  EXPECT_THAT(SubmitAs(ada_, Spec("one")).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(*id)));
}

TEST_F(VeilTest, OfTwoJobsWithOneNameASubmitterDeletesItsOwn) {
  v1::JobSpec of_bob = Spec("same");
  of_bob.mutable_train()->set_out_dir((folder_ / "out/bob").string());
  const auto ada = SubmitAs(ada_, Spec("same"));
  const auto bob = SubmitAs(bob_, of_bob);
  ASSERT_OK(ada);
  ASSERT_OK(bob);
  ASSERT_OK(StopAs(ada_, *ada));
  ASSERT_OK(StopAs(bob_, *bob));
  const auto deleted = DeleteAs(ada_, "same", "delete-same");
  ASSERT_OK(deleted);
  EXPECT_EQ(*deleted, *ada) << "the newer job of this name is bob's";
  EXPECT_EQ(Get(*bob).state(), Job::STATE_STOPPED);
  const auto again = DeleteAs(ada_, "same", "delete-same");
  ASSERT_OK(again);
  EXPECT_EQ(*again, *ada) << "the same request means the same job";
  EXPECT_EQ(Get(*bob).state(), Job::STATE_STOPPED);
}

// The same answer for another's job as for one that does not exist, wherever the id stands.
TEST_F(VeilTest, NoAnswerTellsWhetherAnIdExists) {
  const auto id = SubmitAs(ada_, Spec("one"));
  ASSERT_OK(id);
  const auto edited = [&](const std::string& job) {
    v1::EditJobRequest request;
    request.set_job(job);
    request.set_note("seen");
    return As<v1::EditJobResponse>(bob_, &v1::CoordinatorService::Stub::EditJob, request).status();
  };
  const auto submitted = [&](const std::string& job) {
    v1::JobSpec spec = Spec("two");
    spec.mutable_data()->set_source(v1::DATA_SOURCE_TEXT);
    spec.mutable_data()->add_path((folder_ / job).string());
    return SubmitAs(bob_, spec).status();
  };
  const std::string made_up = "jabcdefghijk2";
  ASSERT_EQ(made_up.size(), id->size());
  EXPECT_THAT(edited(*id), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(edited(*id).message(), edited(made_up).message());
  EXPECT_EQ(submitted(*id).message(), submitted(made_up).message());
  EXPECT_THAT(std::string(submitted(*id).message()), Not(HasSubstr(*id)));
}

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MethodDescriptor;

// Sets each text of a message in turn, also of the messages in it, and calls try_it(its path).
void WithEachText(Message* message, const std::string& path, const std::string& text,
                  const std::function<void(const std::string& path)>& try_it) {
  const google::protobuf::Reflection& fields = *message->GetReflection();
  for (int i = 0; i < message->GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* const field = message->GetDescriptor()->field(i);
    const std::string name = absl::StrCat(path, path.empty() ? "" : ".", field->name());
    const bool was_there = field->is_repeated() || fields.HasField(*message, field);
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      WithEachText(field->is_repeated() ? fields.AddMessage(message, field)
                                        : fields.MutableMessage(message, field),
                   name, text, try_it);
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      const std::string before = field->is_repeated() ? "" : fields.GetString(*message, field);
      field->is_repeated() ? fields.AddString(message, field, text)
                           : fields.SetString(message, field, text);
      try_it(name);
      if (!field->is_repeated() && was_there) fields.SetString(message, field, before);
    } else {
      continue;
    }
    if (field->is_repeated()) fields.RemoveLast(message, field);
    if (!was_there) fields.ClearField(message, field);
  }
}

class EveryMethodTest : public VeilTest {
 protected:
  EveryMethodTest() {
    KeepBeating(1, 0);
    const auto id = SubmitAs(ada_, Spec(known_.name));
    EXPECT_OK(id);
    known_.id = *id;
    EXPECT_TRUE(
        Within(absl::Minutes(1), [&] { return Get(known_.id).state() == Job::STATE_RUNNING; }));
    with_ids_ = *SubmitAs(bob_, Spec("with-ids"));
    with_names_ = *SubmitAs(bob_, Spec("with-names"));
    channel_ = *OpenChannel(server_->listen_address(), {});
  }

  struct Names {
    std::string id;
    std::string name;
  };

  // A request that gets as far as it can: with a job that preflight accepts, the job `own` of bob,
  // and a start that ada's job has had.
  std::unique_ptr<Message> RequestOf(const MethodDescriptor& method, const std::string& own) {
    std::unique_ptr<Message> request(google::protobuf::MessageFactory::generated_factory()
                                         ->GetPrototype(method.input_type())
                                         ->New());
    if (auto* submit = dynamic_cast<v1::SubmitJobRequest*>(request.get())) {
      *submit->mutable_spec() = Spec("new");
      submit->set_validate_only(true);
    }
    if (auto* edit = dynamic_cast<v1::EditJobRequest*>(request.get())) edit->set_job(own);
    if (auto* records = dynamic_cast<v1::ReportRecordsRequest*>(request.get())) {
      records->set_generation(1);
    }
    if (auto* log = dynamic_cast<v1::ReportLogRequest*>(request.get())) log->set_generation(1);
    return request;
  }

  // What a method answers when the text at `path` is `text`.
  RawAnswer Ask(const MethodDescriptor& method, const std::string& path, const std::string& text,
                const std::string& token) {
    // Its labels are in its answers, so ids and names go into jobs of their own.
    const bool is_id = text == known_.id || text == made_up_.id;
    const auto request = RequestOf(method, is_id ? with_ids_ : with_names_);
    RawAnswer answer;
    WithEachText(request.get(), "", text, [&](const std::string& at) {
      if (at != path) return;
      answer = CallRaw(channel_, PathOf(method), request->SerializeAsString(), token);
    });
    return answer;
  }
  static std::string PathOf(const MethodDescriptor& method) {
    return absl::StrCat("/", method.service()->full_name(), "/", method.name());
  }

  // Its error, without the text that was asked for.
  static std::string Told(const RawAnswer& answer, const std::string& text) {
    const std::string told =
        absl::StrCat(answer.status.error_code(), " ", answer.status.error_message(),
                     answer.status.error_details());
    return absl::StrReplaceAll(told, {{text, "TEXT"}});
  }

  void CompareAll(const MethodDescriptor& method, const std::string& token) {
    std::vector<std::string> paths;
    WithEachText(RequestOf(method, with_ids_).get(), "", "",
                 [&](const std::string& at) { paths.push_back(at); });
    for (const std::string& path : paths) {
      SCOPED_TRACE(absl::StrCat(method.full_name(), " ", path));
      for (const auto& [real, made_up, hidden] :
           {std::tuple(known_.id, made_up_.id, known_.name),
            std::tuple(known_.name, made_up_.name, known_.id)}) {
        const RawAnswer there = Ask(method, path, real, token);
        const std::string of_there = Told(there, real);
        const std::string of_none = Told(Ask(method, path, made_up, token), made_up);
        EXPECT_EQ(of_there, of_none);
        EXPECT_THAT(absl::StrCat(of_there, there.bytes), Not(HasSubstr(hidden)));
      }
    }
  }

  Names known_ = {.id = "", .name = "run-of-ada"};
  const Names made_up_ = {.id = "jabcdefghijk2", .name = "run-of-eve"};
  std::string with_ids_;
  std::string with_names_;
  std::shared_ptr<grpc::Channel> channel_;
};

// Whatever text of whatever request has it: a method that is added must pass, too.
TEST_F(EveryMethodTest, TellsASubmitterNothingOfAnothersJob) {
  int methods = 0;
  for (const std::string service : {"nsa.v1.CoordinatorService", "nsa.v1.FleetService"}) {
    const auto* const known =
        google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(service);
    for (int i = 0; i < known->method_count(); ++i, ++methods) {
      const MethodDescriptor& method = *known->method(i);
      const RawAnswer of_all = CallRaw(channel_, PathOf(method), "", bob_);
      EXPECT_THAT(of_all.bytes, Not(AnyOf(HasSubstr(known_.id), HasSubstr(known_.name))))
          << method.name();
      CompareAll(method, bob_);
    }
  }
  EXPECT_EQ(methods, 34);
}

TEST_F(EveryMethodTest, TellsTheAgentOfAnotherMachineNothingOfAJob) {
  v1::CreateTokenRequest token;
  token.set_role(v1::ROLE_AGENT);
  token.set_node("b");
  const auto made = Call<v1::CreateTokenResponse>(&v1::CoordinatorService::Stub::CreateToken,
                                                  people_.get(), token);
  ASSERT_OK(made);
  const std::string secret = "the-secret-of-node-b";
  v1::JoinRequest join;
  join.set_node("b");
  join.set_join_token(made->secret());
  join.set_secret_sha256(Sha256(secret));
  ASSERT_OK(Call<v1::JoinResponse>(&v1::FleetService::Stub::Join, agents_.get(), join).status());
  const auto* const service =
      google::protobuf::DescriptorPool::generated_pool()->FindServiceByName("nsa.v1.FleetService");
  for (int i = 0; i < service->method_count(); ++i) CompareAll(*service->method(i), secret);
}

}  // namespace
}  // namespace nsa::server
