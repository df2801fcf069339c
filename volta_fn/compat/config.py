"""Settings by JAX's names: `config.update`, `enable_x64`, `disable_jit`, ….

Settings in `EFFECTIVE` change the behaviour of the package. Settings in `IGNORED`, of compilers and hardware that it does not have, are
stored without effect, so that programs run. All belong to the process; a context manager sets one while its block runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ContextDecorator, contextmanager
from inspect import Parameter, Signature
from typing import Any

from volta_fn import dtypes
from volta_fn.core.aval import set_numpy_dtype_promotion
from volta_fn.core.caches import clear_all
from volta_fn.core.devices.device import Device, set_cpu_devices, set_default_device, set_default_spec, set_visible_platforms
from volta_fn.errors import ArgumentError, UnknownSettingError
from volta_fn.jit.cache import clear_caches
from volta_fn.jit.eager import forget_kernels
from volta_fn.lazy_imports import refuse
from volta_fn.primitives.contraction import check_precision
from volta_fn.settings import VERIFY, current


def _plain(name: str) -> Callable[[Any], None]:
    """Return the function that sets a switch to a truth value."""
    return lambda value: setattr(current, name, bool(value))


def _forget() -> None:
    """Drop all programs that were traced or compiled under other settings."""
    clear_all()


def _one_of(name: str, *choices: str) -> Callable[[Any], None]:
    def set_to(value: Any) -> None:
        if value not in choices:
            raise ArgumentError(f"jax_{name} must be one of {', '.join(choices)}, got {value!r}")
        setattr(current, name.removeprefix("numpy_"), value)
        dtypes.promote.cache_clear()
        _forget()

    return set_to


def _dtype_promotion(value: Any) -> None:
    set_numpy_dtype_promotion(value)
    _forget()


def _disable_jit(value: Any) -> None:
    current.disable_jit = bool(value)
    forget_kernels()  # of loops, which run in Python
    clear_caches()  # so that calls find out


def _debug(name: str) -> Callable[[Any], None]:
    def set_to(value: Any) -> None:
        setattr(current, name, bool(value))
        _forget()

    return set_to


def _seed_offset(value: Any) -> None:
    if not isinstance(value, int):
        raise ArgumentError(f"jax_random_seed_offset must be an integer, got {value!r}")
    current.random_seed_offset = value
    clear_caches()


def _matmul_precision(value: Any) -> None:
    check_precision("jax_default_matmul_precision", value)
    if value != current.matmul_precision:
        current.matmul_precision = value
        _forget()


def _enable_x64(value: Any) -> None:
    dtypes.set_width(None if value is None else 64 if value else 32)
    _forget()


def _platforms(value: Any) -> None:
    """Hide the platforms that a list lacks; its first has the default device."""
    names = _platform_names(value)
    set_visible_platforms(names or None)
    _platform_name(value)


def _platform_name(value: Any) -> None:
    """Set the default device by a list of platforms, without using it."""
    set_default_spec(next(iter(_platform_names(value)), None))


def _platform_names(value: Any) -> list[str]:
    names = {"cuda": "gpu", "rocm": "gpu", "metal": "gpu", "vulkan": "gpu"}
    return [names.get(name, name) for name in str(value or "").split(",") if name]


def _default_device(value: Any) -> None:
    if isinstance(value, Device):
        set_default_device(value)
    else:
        _platform_name(config.values["jax_platforms"] if value is None else value)


def _num_cpu_devices(value: Any) -> None:
    if value > 0:
        set_cpu_devices(value)


#: The settings with an effect, and their setters.
EFFECTIVE: dict[str, Callable[[Any], None]] = {
    "jax_enable_x64": _enable_x64,
    "jax_disable_jit": _disable_jit,
    "jax_debug_nans": _debug("debug_nans"),
    "jax_debug_infs": _debug("debug_infs"),
    "jax_log_compiles": _plain("log_compiles"),
    "jax_explain_cache_misses": _plain("explain_cache_misses"),
    "jax_check_tracer_leaks": _debug("check_tracer_leaks"),
    "jax_numpy_rank_promotion": _one_of("numpy_rank_promotion", "allow", "warn", "raise"),
    "jax_numpy_dtype_promotion": _dtype_promotion,
    "jax_default_prng_impl": _one_of("default_prng_impl", "threefry2x32", "rbg", "unsafe_rbg"),
    "jax_legacy_prng_key": _one_of("legacy_prng_key", "allow", "warn", "error"),
    "jax_random_seed_offset": _seed_offset,
    "jax_threefry_partitionable": _debug("threefry_partitionable"),
    "jax_high_dynamic_range_gumbel": _debug("high_dynamic_range_gumbel"),
    "jax_check_static_indices": _debug("check_static_indices"),
    "jax_disable_bwd_checks": _debug("disable_bwd_checks"),
    "jax_enable_checks": _debug("verify"),
    "jax_default_matmul_precision": _matmul_precision,
    "jax_allow_f16_reductions": _debug("allow_f16_reductions"),
    "jax_platforms": _platforms,
    "jax_platform_name": _platform_name,
    "jax_default_device": _default_device,
    "jax_num_cpu_devices": _num_cpu_devices,
    "jax_export_calling_convention_version": lambda value: setattr(current, "calling_convention", value),
}

#: The settings without effect, and their defaults.
IGNORED: dict[str, Any] = {
    **dict.fromkeys(
        """jax2tf_associative_scan_reductions jax_remove_size_one_mesh_axis_from_type
        jax_compilation_cache_expect_pgle jax_debug_key_reuse jax_disable_most_optimizations jax_distributed_debug
        jax_enable_custom_prng jax_enable_pgle jax_enable_recoverability
        jax_log_checkpoint_residuals jax_no_collectives jax_no_execution jax_no_tracing jax_raise_persistent_cache_errors jax_remat3
        jax_scan3 jax_custom_vjp3 jax_softmax_custom_jvp jax_thread_guard jax_disable_vmap_shmap_error
        jax_threefry_gpu_kernel_lowering eager_constant_folding check_vma
        jax_bcoo_cusparse_lowering jax_compilation_cache_check_contents jax_compilation_cache_include_metadata_in_key
        jax_debug_leaked_clients_on_clear_backends jax_disallow_mesh_context_manager jax_experimental_unsafe_xla_runtime_errors
        jax_export_ignore_forward_compatibility jax_force_dcn_cross_host_transfers jax_mosaic_allow_hlo jax_pallas_enable_debug_checks
        jax_pallas_poison_buffers jax_pallas_verbose_errors jax_ragged_dot_use_gpu_pallas_triton_lowering jax_refs_to_pins
        jax_remove_custom_partitioning_ptr_from_cache_key jax_share_binary_between_hosts jax_use_emit_pipeline_primitive
        jax_use_simplified_jaxpr_constants""".split(),
        False,
    ),
    **dict.fromkeys(
        """jax_cpu_enable_async_dispatch jax_enable_compilation_cache jax_auto_pcast jax_include_full_tracebacks_in_locations
        jax_mutable_array_checks jax_pprint_use_color jax_use_direct_linearize jax_use_shardy_partitioner
        jax_compiler_enable_remat_pass jax_check_proxy_envs jax_enable_preemption_service jax_include_debug_info_in_dumps
        jax_pallas_use_mosaic_gpu jax_ragged_dot_use_ragged_dot_instruction jax_sort_devices_by_process_index
        jax2tf_default_native_serialization""".split(),
        True,
    ),
    **dict.fromkeys(
        """jax_array_garbage_collection_guard jax_compilation_cache_dir jax_transfer_guard
        jax_transfer_guard_device_to_device jax_transfer_guard_device_to_host jax_transfer_guard_host_to_device
        jax_cross_host_transfer_socket_address jax_cross_host_transfer_timeout_seconds jax_cross_host_transfer_transfer_size
        jax_hlo_source_file_canonicalization_regex jax_pjrt_client_create_options jax_source_url_schema""".split(),
        None,
    ),
    "jax_backend_target": "",
    "jax_captured_constants_report_frames": 0,
    "jax_captured_constants_warn_bytes": 2_000_000_000,
    "jax_compilation_cache_max_size": -1,
    "jax_compiler_detailed_logging_min_ops": 10,
    "jax_cpu_collectives_implementation": "gloo",
    "jax_cpu_get_global_topology_timeout_minutes": 5,
    "jax_cpu_get_local_topology_timeout_minutes": 2,
    "jax_cross_host_transport_addresses": "",
    "jax_cuda_visible_devices": "all",
    "jax_debug_log_modules": "",
    "jax_dump_ir_modes": "stablehlo",
    "jax_dump_ir_to": "",
    "jax_embedded_constants_max_bytes": 32,
    "jax_error_checking_behavior_divide": "ignore",
    "jax_error_checking_behavior_nan": "ignore",
    "jax_error_checking_behavior_oob": "ignore",
    "jax_exec_time_optimization_effort": 0.0,
    "jax_explicit_x64_dtypes": "warn",
    "jax_logging_level": "NOTSET",
    "jax_memory_fitting_effort": 0.0,
    "jax_mock_gpu_topology": "",
    "jax_pmap_shmap_merge": True,
    "jax_memory_fitting_level": "O2",
    "jax_oneapi_visible_devices": "all",
    "jax_optimization_level": "UNKNOWN",
    "jax_persistent_cache_enable_xla_caches": "",
    "jax_persistent_cache_min_compile_time_secs": 1.0,
    "jax_persistent_cache_min_entry_size_bytes": 0,
    "jax_pgle_aggregation_percentile": 90,
    "jax_pgle_profiling_runs": 3,
    "jax_rocm_visible_devices": "all",
    "jax_send_traceback_to_runtime": "off",
    "jax_serialization_version": 0,
    "jax_share_binary_between_hosts_timeout_ms": 1_200_000,
    "jax_traceback_filtering": "auto",
    "jax_traceback_in_locations_limit": 100,
    "jax_tracer_error_num_traceback_frames": 5,
    "jax_use_magma": "auto",
    "jax_xla_backend": "",
    "jax_xla_profile_version": 0,
    "mock_num_gpu_processes": 0,
}

_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(EFFECTIVE, False),
    "jax_enable_x64": None,  # neither width, which reads as False
    "jax_numpy_rank_promotion": "allow",
    "jax_numpy_dtype_promotion": "standard",
    "jax_legacy_prng_key": "allow",
    "jax_default_prng_impl": "threefry2x32",
    "jax_random_seed_offset": 0,
    "jax_threefry_partitionable": True,
    "jax_allow_f16_reductions": True,
    "jax_default_matmul_precision": None,
    "jax_enable_checks": VERIFY,
    "jax_platforms": None,
    "jax_platform_name": "",
    "jax_default_device": None,
    "jax_num_cpu_devices": -1,
    "jax_export_calling_convention_version": current.calling_convention,
}


class Config:
    """The settings: `config.update(name, value)`, `config.read(name)`, attributes.

    >>> from volta_fn.config import config
    >>> config.update("jax_numpy_rank_promotion", "raise")
    >>> config.jax_numpy_rank_promotion
    'raise'
    >>> config.update("jax_numpy_rank_promotion", "allow")
    """

    def __init__(self) -> None:
        self.values: dict[str, Any] = {**IGNORED, **_DEFAULTS}
        self._variables: dict[str, str] = {}  # of the environment, as they were read

    def update(self, name: str, val: Any) -> None:
        """Set a setting; raise `UnknownSettingError` if there is none of that name."""
        self._checked_name(name)
        if name in EFFECTIVE:
            EFFECTIVE[name](val)
        self.values[name] = val

    def read(self, name: str) -> Any:
        """Return a setting; raise `UnknownSettingError` if there is none of that name."""
        return self.x64_enabled if name == "jax_enable_x64" else self.values[self._checked_name(name)]

    def _checked_name(self, name: str) -> str:
        if name not in self.values:
            raise UnknownSettingError(f"config: there is no setting {name!r}; volta_fn.config lists those that act and those accepted")
        return name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "values":
            raise AttributeError(name)
        return self.read(name)

    @property
    def x64_enabled(self) -> bool:
        """Whether dtypes of 64 bits are the default."""
        return bool(self.values["jax_enable_x64"])

    def parse_flags_with_absl(self) -> None:
        """Accept flags of the command line; there are none, as settings have variables."""

    def config_with_absl(self) -> None:
        """Accept flags of the command line; there are none, as settings have variables."""

    def follow_jax(self) -> None:
        """Take JAX's semantics: 32-bit dtypes, indices moved inside, its variables."""
        current.permissive = current.sorted_dicts = True
        self.update("jax_enable_x64", False)
        self.read_variables()

    def read_variables(self) -> None:
        """Take settings from the environment's variables that are new since the last call."""
        for name in self.values:
            text = os.environ.get(name.upper())
            if text is not None and text != self._variables.get(name):
                self._variables[name] = text
                self.update(name, _parsed(text, self.read(name)))


def _parsed(text: str, default: Any) -> Any:
    """Return an environment variable as a value of the type that its setting has."""
    if isinstance(default, bool):
        return text.lower() in ("1", "true", "t", "yes", "y", "on")
    return type(default)(text) if isinstance(default, (int, float)) else text


config = Config()
update = config.update  # as `jax.config.update` is written after a change of imports


class _Setting(ContextDecorator):
    """One use of a setting's context manager."""

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value
        self.outer: list[Any] = []

    def __enter__(self) -> None:
        config.read(self.name)  # raises for an unknown setting
        self.outer.append(config.values[self.name])
        config.update(self.name, self.value)

    def __exit__(self, *exception: object) -> None:
        config.update(self.name, self.outer.pop())


class State:
    """A setting: a call sets it while a block runs, `value` reads it.

    >>> from volta_fn.config import debug_nans
    >>> with debug_nans(True):
    ...     debug_nans.value
    True
    """

    def __init__(self, setting: str, default: Any = None) -> None:
        self._setting, self._default = setting, default
        self.__name__ = self.__qualname__ = setting.removeprefix("jax_")
        self.__doc__ = f"Set `{setting}` while a block runs."
        self.__signature__ = Signature([Parameter("new_val", Parameter.POSITIONAL_OR_KEYWORD, default=default)])

    def __call__(self, new_val: Any = ...) -> _Setting:
        """Return the context manager that sets a value."""
        return _Setting(self._setting, self._default if new_val is ... else new_val)

    def __repr__(self) -> str:
        return f"State({self._setting}={self.value!r})"

    @property
    def value(self) -> Any:
        """The value."""
        return config.read(self._setting)


def disable_jit(disable: bool = True) -> _Setting:
    """Let jitted functions run in Python while a block runs."""
    return _Setting("jax_disable_jit", disable)


class UserContext:
    """A value set by the user that traced functions may read.

    `make_user_context` makes one, which its example shows. When the value changes, all programs are traced anew.
    """

    def __init__(self, default_value: Any = None) -> None:
        self.value = default_value

    def get_global(self) -> Any:
        """Return the value."""
        return self.value

    def set_global(self, new_value: Any) -> None:
        """Set the value."""
        self.value = new_value
        clear_caches()

    @contextmanager
    def __call__(self, new_value: Any) -> Iterator[None]:
        """Set the value while a block runs."""
        before = self.value
        self.set_global(new_value)
        try:
            yield
        finally:
            self.set_global(before)


def make_user_context(default_value: Any = None) -> UserContext:
    """Make a value that functions may read while they are traced.

    >>> from volta_fn.config import make_user_context
    >>> factor = make_user_context(2)
    >>> scaled = vf.jit(lambda x: factor.value * x)
    >>> with factor(3):
    ...     inside = scaled(1)
    >>> int(inside), int(scaled(1))
    (3, 2)
    """
    return UserContext(default_value)


allow_f16_reductions = State("jax_allow_f16_reductions", True)
enable_x64 = State("jax_enable_x64", True)
debug_nans = State("jax_debug_nans", True)
debug_infs = State("jax_debug_infs", True)
numpy_rank_promotion = State("jax_numpy_rank_promotion")
numpy_dtype_promotion = State("jax_numpy_dtype_promotion")
default_matmul_precision = State("jax_default_matmul_precision")
default_prng_impl = State("jax_default_prng_impl")
check_tracer_leaks = checking_leaks = State("jax_check_tracer_leaks", True)
debug_key_reuse = State("jax_debug_key_reuse", True)
enable_checks = State("jax_enable_checks", True)
enable_custom_prng = State("jax_enable_custom_prng", True)
explain_cache_misses = State("jax_explain_cache_misses", True)
legacy_prng_key = State("jax_legacy_prng_key")
log_compiles = State("jax_log_compiles", True)
softmax_custom_jvp = State("jax_softmax_custom_jvp", True)
threefry_partitionable = State("jax_threefry_partitionable", True)
transfer_guard = State("jax_transfer_guard")
transfer_guard_device_to_device = State("jax_transfer_guard_device_to_device")
transfer_guard_device_to_host = State("jax_transfer_guard_device_to_host")
transfer_guard_host_to_device = State("jax_transfer_guard_host_to_device")
array_garbage_collection_guard = State("jax_array_garbage_collection_guard")
thread_guard = State("jax_thread_guard", True)
no_tracing = State("jax_no_tracing", True)
no_execution = State("jax_no_execution", True)
no_collectives = State("jax_no_collectives", True)
jax_export_calling_convention_version = State("jax_export_calling_convention_version")
auto_pcast = State("jax_auto_pcast", True)
remove_size_one_mesh_axis_from_type = State("jax_remove_size_one_mesh_axis_from_type", True)
jax2tf_associative_scan_reductions = State("jax2tf_associative_scan_reductions", True)


#: Settings whose state JAX calls otherwise.
_STATE_NAMES = {
    "enable_remat_opt_pass": "jax_compiler_enable_remat_pass",
    "gpu_use_magma": "jax_use_magma",
    "use_high_dynamic_range_gumbel": "jax_high_dynamic_range_gumbel",
    "xla_runtime_errors": "jax_experimental_unsafe_xla_runtime_errors",
}


def __getattr__(name: str) -> State:
    """Return the state of a setting by its name.

    The name may lack ``jax_``, as in JAX's private module, which has a state for each.
    """
    for setting in (_STATE_NAMES.get(name, ""), f"jax_{name}", name):
        if setting in config.values:
            return State(setting, True if isinstance(config.values[setting], bool) else None)
    return refuse(sys.modules[__name__], name)
