#include "engine/followed_constraints.h"

#include <exception>
#include <span>
#include <string>
#include <utility>

#include "base/log.h"

namespace baltoro {
namespace {

// Lets nothing come, and says why.
class FailedConstraint final : public TokenConstraint {
 public:
  explicit FailedConstraint(Status why) : why_(std::move(why)) {}
  void FillMask(std::span<const TokenId>, std::span<uint32_t>) override {}
  bool Accept(TokenId) override { return false; }
  void Rollback(int) override {}
  Status error() const override { return why_; }

 private:
  const Status why_;
};

}  // namespace

Status FollowedConstraints::Make(const StepPlan& plan) {
  for (const AdmittedSequence& admitted : plan.admitted) {
    if (!admitted.constrained) continue;
    if (factory_ == nullptr || admitted.constraint.empty()) {
      return Status(Code::kInternal,
                    "a plan has a sequence whose output has a form, and no form came with it");
    }
    Result<std::unique_ptr<TokenConstraint>> made = MakeOne(admitted);
    if (!made.ok()) {
      BT_LOG_LIMITED(Error, "The form of an output could not be made here: {}",
                     made.status().message());
      table_->Add(admitted.request, std::make_shared<FailedConstraint>(made.status()));
    } else {
      table_->Add(admitted.request, std::move(made).value());
    }
    made_.push_back(admitted.request);
  }
  return {};
}

Result<std::unique_ptr<TokenConstraint>> FollowedConstraints::MakeOne(
    const AdmittedSequence& admitted) {
  Request request;
  request.id = admitted.request;
  request.constraint = admitted.constraint;
  request.stop.stop_ids = admitted.constraint_ends;
  try {
    BT_ASSIGN_OR_RETURN(std::unique_ptr<TokenConstraint> made, factory_->Make(request));
    if (made == nullptr) {
      return Status(Code::kInternal, "the output's constraint could not be made");
    }
    for (const TokenId token : admitted.output) {
      if (made->Accept(token)) continue;
      const Status why = made->error();
      return !why.ok() ? why
                       : Status(Code::kInternal,
                                "the output's constraint does not allow what was sampled before");
    }
    return made;
  } catch (const std::exception&) {
    return Status(Code::kResourceExhausted, "the output's constraint ran out of memory");
  }
}

void FollowedConstraints::Forget() {
  for (const RequestId id : made_) table_->Remove(id);
  made_.clear();
}

}  // namespace baltoro
