"""Settings whose model a plug-in defines: algorithms, rewards, simulated people and transports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError, core_schema

from serl import plugins
from serl.agent import AgentConfig
from serl.agents.config import SACConfig
from serl.errors import BadInput
from serl.intervention import PersonConfig
from serl.reward import RewardConfig
from serl.system.settings_file import unknown_setting
from serl.teleop.scripted import ScriptedHumanConfig
from serl.transport import TransportConfig

_KNOWN_ERRORS = frozenset(get_args(core_schema.ErrorType))


class Choice(NamedTuple):
    """A field of `TrainConfig` whose model depends on a plug-in.

    Attributes:
        kind: kind of the plug-in.
        setting: name of the setting that selects the plug-in, in the field's model or in the run's.
        contract: base class of the models of all plug-ins of this kind.
        own: the model of serl's own plug-ins.
        bare: the model of an external plug-in that defines none.
    """

    field: str
    kind: plugins.Kind
    setting: str
    contract: type[BaseModel]
    own: type[BaseModel]
    bare: type[BaseModel]

    def validate(self, value: Any, run: Mapping[str, Any]) -> Any:
        """Return an instance of the plug-in's model; `value` itself if the name is no string.

        Args:
            value: the settings, or an instance of a model.
            run: the settings of the run that were validated before.

        Raises:
            BadInput: the plug-in does not exist, or cannot be loaded.
            ValidationError: the settings do not fit the plug-in's model.
        """
        name = self._name(value, run)
        return (
            _validate(value, self.model(plugins.absolute(name))) if isinstance(name, str) else value
        )

    def validate_unloaded(self, value: Any, run: Mapping[str, Any]) -> Any:
        """Validate without loading external code: an external plug-in gets default settings."""
        name = self._name(value, run)
        if isinstance(name, str) and name not in plugins.provided(self.kind):
            own_setting = self.setting in self.own.model_fields
            return self.bare().model_copy(update={self.setting: name} if own_setting else {})
        return self.validate(value, run)

    def selection(self, name: str) -> dict[str, Any]:
        """Return the settings of a run that select a plug-in by its name."""
        if self.setting in self.own.model_fields:
            return {self.field: {self.setting: name}}
        return {self.setting: name}

    def _name(self, value: Any, run: Mapping[str, Any]) -> Any:
        """Return the name of the plug-in, unchecked."""
        if self.setting not in self.own.model_fields:
            return run.get(self.setting)
        if isinstance(value, Mapping):
            return value.get(self.setting, self.own.model_fields[self.setting].default)
        return getattr(value, self.setting, None)

    def model(self, name: str) -> type[BaseModel]:
        """Return the model of a plug-in by name or path; raise `BadInput` naming the setting."""
        default = self.own if name in plugins.provided(self.kind) else self.bare
        try:
            return plugins.settings(self.kind, name, self.contract, default)
        except BadInput as error:
            within = f"{self.field}." if self.setting in self.own.model_fields else ""
            raise BadInput(f"{within}{self.setting}: {error}") from None


_OF_AGENT = Choice("agent", "agent", "algorithm", AgentConfig, SACConfig, SACConfig)
_OF_REWARD = Choice("reward", "reward", "kind", RewardConfig, RewardConfig, RewardConfig)
_OF_PERSON = Choice(
    "human", "person", "intervention", PersonConfig, ScriptedHumanConfig, PersonConfig
)
_OF_TRANSPORT = Choice(
    "transport", "transport", "kind", TransportConfig, TransportConfig, TransportConfig
)
CHOICES = {each.field: each for each in (_OF_AGENT, _OF_REWARD, _OF_PERSON, _OF_TRANSPORT)}


def without_unknown(layer: Mapping[str, Any], config: BaseModel) -> dict[str, Any]:
    """Return a task's tuned settings without those that the plug-ins of the run do not have.

    Args:
        layer: the tuned settings.
        config: the run's `TrainConfig`.
    """
    kept = dict(layer)
    for field in CHOICES.keys() & layer.keys():
        known = type(getattr(config, field)).model_fields
        kept[field] = {name: value for name, value in layer[field].items() if name in known}
    for name, stage in (layer.get("stages") or {}).items():
        own = without_unknown(stage.get("config", {}), config)
        kept["stages"] = {**kept["stages"], name: {**stage, "config": own}}
    return kept


def _validate(value: Any, model: type[BaseModel]) -> Any:
    """Return an instance of `model`; errors on unknown settings list all settings of the model."""
    if isinstance(value, model):
        return value
    values = value.model_dump(exclude_unset=True) if isinstance(value, BaseModel) else value
    try:
        return model.model_validate(values)
    except ValidationError as error:
        details = [_detail(model, each) for each in error.errors()]
        raise ValidationError.from_exception_data(model.__name__, details) from None


def _detail(model: type[BaseModel], error: Any) -> InitErrorDetails:
    kind: str | PydanticCustomError = error["type"]
    if kind == "extra_forbidden" and len(error["loc"]) == 1:
        text = unknown_setting(model, str(error["loc"][0]))
        kind = PydanticCustomError("value_error", "{error}", {"error": text})
    elif error["type"] not in _KNOWN_ERRORS:  # pydantic's own Python code has more, as of paths
        kind = PydanticCustomError(error["type"], "{message}", {"message": error["msg"]})
    detail = InitErrorDetails(type=kind, loc=error["loc"], input=error["input"])
    if "ctx" in error:
        detail["ctx"] = error["ctx"]
    return detail
